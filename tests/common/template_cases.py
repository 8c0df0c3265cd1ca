"""Conversations for chat templates: what clients send, in all the shapes they send it."""

import copy
import itertools

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.\nTakes \"now\" & <later>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"],
                         "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "nullable": True},
                "at": {"type": "object", "description": "Where",
                       "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                       "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "either": {"type": ["string", "null"]},
                "one_of": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "A sentence."},
    },
}
PLAIN_TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time.",
                 "parameters": {"type": "object", "properties": {}, "required": []}},
}
BARE_TOOL = {"name": "bare", "description": "Not wrapped.", "parameters": {
    "type": "object", "properties": {"x": {"type": "number", "description": "X"}}}}


def system(text="You are a helpful assistant."):
    return {"role": "system", "content": text}


def user(content="Hello!"):
    return {"role": "user", "content": content}


def assistant(content="Hi there.", **more):
    return {"role": "assistant", "content": content, **more}


def call(name="get_weather", arguments=None, call_id="call_a1b2c3d4e", **more):
    return {"id": call_id, "type": "function",
            "function": {"name": name, "arguments": arguments}, **more}


def result(content="18 °C", call_id="call_a1b2c3d4e", name="get_weather"):
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


ARGUMENTS = {"city": "Zürich", "days": 3, "at": {"lat": 47.37, "lon": -8.5}, "tags": ["a", "b"],
             "flag": True, "none": None, "f": 1.0, "quote": "it's \"so\" <b>"}
PARTS = [{"type": "text", "text": "Part one. "}, {"type": "text", "text": "Part two."}]
IMAGE = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
THINKING = "<think>\nLet me see.\n</think>\n\nThe answer is 4."

CONVERSATIONS = {
    "empty": [],
    "user": [user()],
    "system": [system(), user()],
    "developer": [{"role": "developer", "content": "Be brief."}, user()],
    "turns": [user("1+1?"), assistant("2"), user("2+2?")],
    "system_turns": [system(), user("1+1?"), assistant("2"), user("2+2?"), assistant("4"),
                     user("  3+3? \n")],
    "ends_with_assistant": [user(), assistant("The capital of France is")],
    "only_system": [system()],
    "only_assistant": [assistant()],
    "two_users": [user("a"), user("b")],
    "two_systems": [system("a"), system("b"), user("c")],
    "late_system": [user("a"), assistant("b"), system("c"), user("d")],
    "unknown_role": [{"role": "moderator", "content": "Order!"}, user()],
    "no_role": [{"content": "who?"}],
    "no_content": [{"role": "user"}],
    "null_content": [user(None), assistant(None), user("x")],
    "empty_content": [system(""), user(""), assistant(""), user("x")],
    "spaces": [system(" \n sys \t"), user("\n\n a \n\n"), assistant("  b\n"), user("\u00a0c\u3000")],
    "unicode": [system("Üñï 中文 🙂"), user("👩‍👩‍👧 \u200b\u202e שלום \u0085 ß İ ǅ"),
                assistant("Привет, мир! \u2028 ﬁ"), user("日本語 ½ ① \ufeff")],
    "markup": [user("<b>&amp; \"quoted\" 'single' {{ not }} {% a %} {# tag #}"),
               assistant("</s><|im_end|> [INST] \\n \\"), user("\x00\x01\x1f\x7f\r\n\t")],
    "parts": [system("s"), user(PARTS), assistant("ok"), user(PARTS)],
    "parts_everywhere": [{"role": "system", "content": PARTS}, user(PARTS),
                         {"role": "assistant", "content": PARTS}, user(PARTS)],
    "image": [user(IMAGE)],
    "image_url": [user([{"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                        {"type": "text", "text": "And?"}])],
    "empty_parts": [user([]), assistant("a"), user([{"type": "text", "text": ""}])],
    "thinking": [user("2+2?"), assistant(THINKING), user("Sure?"), assistant(THINKING)],
    "thinking_then_user": [user("2+2?"), assistant(THINKING), user("Sure?")],
    "reasoning": [user("2+2?"), assistant("4", reasoning_content="Two and two."), user("Sure?"),
                  assistant("Yes.", reasoning_content=" Checked.\n"), user("Good.")],
    "reasoning_field": [user("2+2?"), assistant("4", reasoning="Two and two.", thinking="Hm.")],
    "call": [user("Weather?"), assistant("", tool_calls=[call(arguments=ARGUMENTS)])],
    "call_text": [user("Weather?"),
                  assistant("", tool_calls=[call(arguments='{"city": "Zürich", "days": 3}')])],
    "call_null_content": [user("Weather?"), assistant(None, tool_calls=[call(arguments=ARGUMENTS)]),
                          result()],
    "call_no_content": [user("Weather?"),
                        {"role": "assistant", "tool_calls": [call(arguments={"city": "Bern"})]},
                        result()],
    "call_result": [system(), user("Weather?"), assistant("Let me look.", tool_calls=[
        call(arguments={"city": "Bern"})]), result()],
    "call_result_answer": [user("Weather?"), assistant("", tool_calls=[
        call(arguments={"city": "Bern"})]), result(), assistant("18 degrees."), user("Thanks.")],
    "calls": [user("Weather, both?"), assistant("", tool_calls=[
        call(arguments={"city": "Bern"}, call_id="call00001"),
        call("now", {}, "call00002")]),
        result(call_id="call00001"), result("noon", "call00002", "now"), assistant("Fine."),
        user("And?")],
    "call_rounds": [user("Weather?"), assistant("", reasoning_content="Need a tool.", tool_calls=[
        call(arguments={"city": "Bern"}, call_id="123456789")]), result(call_id="123456789"),
        assistant("", tool_calls=[call("now", {}, "987654321")]), result("1", "987654321", "now"),
        assistant("Done.", reasoning_content="All known.")],
    "result_json": [user("Weather?"), assistant("", tool_calls=[call(arguments=ARGUMENTS)]),
                    result({"temp": 18.5, "ok": True, "list": [1, None, "x"]})],
    "result_parts": [user("Weather?"), assistant("", tool_calls=[call(arguments=ARGUMENTS)]),
                     result(PARTS)],
    "short_call_id": [user("Weather?"), assistant("", tool_calls=[
        call(arguments={"city": "Bern"}, call_id="abcdefghi")]), result(call_id="abcdefghi")],
    "no_call_id": [user("Weather?"), assistant("", tool_calls=[
        {"function": {"name": "now", "arguments": {}}}]), {"role": "tool", "content": "1"}],
    "lone_result": [result()],
    "no_tool_calls": [user("a"), assistant("b", tool_calls=[]), user("c")],
    "null_tool_calls": [user("a"), assistant("b", tool_calls=None), user("c")],
    "ipython": [user("a"), {"role": "ipython", "content": "1"}, user("b")],
    "function_role": [user("a"), {"role": "function", "name": "f", "content": "1"}],
    "named": [{"role": "user", "name": "Ann", "content": "a"},
              {"role": "assistant", "name": "Bot", "content": "b"}],
    "not_objects": ["just text"],
    "long": [message for i in range(40)
             for message in (user(f"Question {i}?"), assistant(f"Answer {i}."))] + [user("End.")],
}

TOOLS = {
    "none": None,
    "empty": [],
    "one": [PLAIN_TOOL],
    "two": [WEATHER_TOOL, PLAIN_TOOL],
    "bare": [BARE_TOOL],
}

DOCUMENTS = [{"title": "First", "text": "Text of the first."},
             {"title": "Second", "text": "Text \"two\"\nwith lines."}]

EXTRAS = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "thinking": True, "preserve_thinking": True,
     "keep_past_thinking": True, "reasoning_effort": "high"},
    {"builtin_tools": ["wolfram_alpha", "code_interpreter", "browser", "python"],
     "date_string": "01 Jan 2025", "tools_in_user_message": False,
     "custom_tools": [PLAIN_TOOL], "xml_tools": [WEATHER_TOOL], "python_tools": [PLAIN_TOOL],
     "model_identity": "You are a test.", "reasoning_effort": "low"},
    {"available_tools": [WEATHER_TOOL["function"]], "citation_mode": "fast",
     "add_vision_id": True, "date": "today", "response_format": {"type": "json_object"},
     "functions": "[]", "datetime": "today"},
]


def cases(template):
    """All conversations, with tools and generation prompt on and off, and some extras."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    for messages, (name, tools), generate in itertools.product(
            CONVERSATIONS.values(), TOOLS.items(), (False, True)):
        if name in ("empty", "bare") and generate:
            continue
        yield {"template": template, "messages": copy.deepcopy(messages), "tools": tools,
               "add_generation_prompt": generate, **tokens}
    for messages, extra in itertools.product(CONVERSATIONS.values(), EXTRAS[1:]):
        yield {"template": template, "messages": messages, "tools": [WEATHER_TOOL],
               "add_generation_prompt": True, "extra": extra, **tokens}
    for messages in (CONVERSATIONS["system"], CONVERSATIONS["turns"]):
        yield {"template": template, "messages": messages, "documents": DOCUMENTS,
               "add_generation_prompt": True}
        yield {"template": template, "messages": messages}
