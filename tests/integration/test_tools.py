"""Tools, responses and messages with a real cluster: the openai and the anthropic client, and gRPC beside them."""

import json

import anthropic
import grpc
import jsonschema
import openai
import pytest

from cluster import LONG_COMPILE, Cluster
from test_grpc_client import Reflected

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                               "days": {"type": "integer", "minimum": 1, "maximum": 7}},
              "required": ["city", "days"], "additionalProperties": False}
WEATHER = {"name": "get_weather", "description": "The weather of some days", "parameters": PARAMETERS}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}},
                                           "required": ["zone"], "additionalProperties": False}}
SCHEMAS = {each["name"]: each["parameters"] for each in (WEATHER, TIME)}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, TIME)]
QUESTION = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
GREEDY = {"temperature": 0}  # Anthropic's client has no such argument
SAY_HI = [{"role": "user", "content": "Say hi."}]


@pytest.fixture(scope="module")
def cluster():
    with Cluster("--kv-cache-memory", "512MiB", LONG_COMPILE) as c:
        yield c


@pytest.fixture(scope="module")
def client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=600)


@pytest.fixture(scope="module")
def claude(cluster):
    return anthropic.Anthropic(base_url=cluster.http, api_key="none", max_retries=0, timeout=600)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def check(name, arguments):
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_a_named_function_gets_arguments_that_validate(client, model):
    for name in SCHEMAS:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, tools=TOOLS, max_tokens=200, temperature=0,
            tool_choice={"type": "function", "function": {"name": name}})
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert [call.function.name for call in choice.message.tool_calls] == [name]
        check(name, choice.message.tool_calls[0].function.arguments)


def test_required_calls_validate(client, model):
    for seed in range(4):
        answer = client.chat.completions.create(model=model, messages=QUESTION, tools=TOOLS, max_tokens=400,
                                                tool_choice="required", parallel_tool_calls=False, seed=seed)
        calls = answer.choices[0].message.tool_calls
        assert len(calls) == 1 and answer.choices[0].finish_reason == "tool_calls"
        check(calls[0].function.name, calls[0].function.arguments)


def test_streamed_calls_are_the_whole_ones(client, model):
    arguments = dict(model=model, messages=QUESTION, tools=TOOLS, max_tokens=200, temperature=0.7, seed=5,
                     tool_choice="required", parallel_tool_calls=False)
    whole = client.chat.completions.create(**arguments).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(**arguments) as stream:  # the client's own accumulator
        for _ in stream:
            pass
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == (whole.name, whole.arguments)
    assert call.id.startswith("call_") and final.choices[0].finish_reason == "tool_calls"


def test_a_conversation_with_results_of_tools(client, model):
    answer = client.chat.completions.create(model=model, max_tokens=16, temperature=0, messages=QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}])
    assert answer.choices[0].message.content


def test_a_template_without_tools_says_so(client, model):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=QUESTION, tools=TOOLS, max_tokens=8)
    assert error.value.param == "tools"


def chat_request(reflected, messages, max_tokens, seed, temperature=1, tools=TOOLS, choice=None, **fields):
    chat = reflected.message("ChatRequest")(tools_json=json.dumps(tools) if tools else "", **fields)
    for message in messages:
        chat.messages.add(**message)
    if choice is not None:
        chat.tool_choice_json = json.dumps(choice)
    chat.base.stopping.max_tokens = max_tokens
    chat.base.sampling.seed, chat.base.sampling.temperature = seed, temperature
    return chat


def by_grpc(reflected, chat):
    """Text, thoughts, calls and finish_reason of the one choice, its pieces joined."""
    reasons = reflected.pool.FindEnumTypeByName("flotilla.v1.FinishReason").values_by_number
    text, reasoning, calls, finish = "", "", [], ""
    for choice in (c for response in reflected.call("Chat", chat) for c in response.choices):
        text, reasoning = text + choice.text, reasoning + choice.reasoning
        for piece in choice.tool_calls:
            if piece.id:
                assert piece.id.startswith("call_") and piece.index == len(calls)
                calls.append([piece.name, ""])
            calls[piece.index][1] += piece.arguments
        if choice.finish_reason:
            finish = reasons[choice.finish_reason].name.removeprefix("FINISH_REASON_").lower()
    return text, reasoning, calls, finish


def by_http(client, model, messages, max_tokens, seed, tools=TOOLS, choice=None, **fields):
    """The same of /v1/chat/completions."""
    if choice is not None:
        fields["tool_choice"] = choice
    if tools:
        fields["tools"] = tools
    fields.pop("parse_answer", None)
    choice, = client.chat.completions.create(model=model, messages=messages, max_tokens=max_tokens, seed=seed,
                                             **fields).choices
    reasoning = getattr(choice.message, "reasoning_content", None)
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
    return choice.message.content or "", reasoning or "", calls, choice.finish_reason


def test_grpc_answers_as_http(cluster, client, model):
    reflected = Reflected(cluster.grpc)
    named = {"type": "function", "function": {"name": "get_time"}}
    for seed, asked in ((1, dict(choice="required")),
                        (2, dict(choice="required", parallel_tool_calls=False)),
                        (3, dict(choice=named)),
                        (4, dict(choice="none")),
                        (5, dict(tools=None, parse_answer=True))):
        asked = dict(asked, messages=QUESTION, max_tokens=200, seed=seed)
        answer = by_grpc(reflected, chat_request(reflected, **asked))
        assert answer == by_http(client, model, **asked), asked
        assert bool(answer[2]) == (seed < 4), answer
    with pytest.raises(grpc.RpcError) as error:
        by_grpc(reflected, chat_request(reflected, QUESTION, 8, 1, parse_answer=True))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "'tools_json'" in error.value.details()


# The default model's, which shows tools besides.
SHOWS_TOOLS = """{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}\
{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def test_grpc_and_http_find_the_same_calls(tmp_path):
    """That a model makes when it may choose; this one must be told how, since its template says nothing of it."""
    call = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
    messages = [{"role": "user", "content": "Repeat: " + call}, {"role": "assistant", "content": call},
                {"role": "user", "content": "Repeat: " + call}]
    template = tmp_path / "tools.jinja"
    template.write_text(SHOWS_TOOLS)
    with Cluster("--tool-call-parser", "hermes", "--kv-cache-memory", "512MiB", "--chat-template", str(template)) as c:
        reflected = Reflected(c.grpc)
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=600)
        asked = dict(messages=messages, max_tokens=60, seed=1, temperature=0)
        chat = chat_request(reflected, parse_answer=True, **asked)
        answer = by_grpc(reflected, chat)
        assert answer == by_http(client, client.models.list().data[0].id, **asked)
        assert answer[2] == [["get_time", '{"zone": "UTC"}']], answer
        assert answer[3] == "tool_calls"
        chat.parse_answer = False
        raw = by_grpc(reflected, chat)
        assert "<tool_call>" in raw[0] and not raw[2], "who does not ask gets what the model wrote"


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": False}


def test_strict_tools_and_answers_of_a_form(tmp_path):
    """What a model may choose: it writes a call as it was shown one, and the schema decides what is in it."""
    call = '<tool_call>{"name": "get_time", "arguments": {"zone": "MARS"}}</tool_call>'
    messages = [{"role": "user", "content": "Repeat: " + call}, {"role": "assistant", "content": call},
                {"role": "user", "content": "Repeat: " + call}]
    strict = [{"type": "function", "function": dict(each, strict=True)} for each in (WEATHER, TIME)]
    template = tmp_path / "tools.jinja"
    template.write_text(SHOWS_TOOLS)
    with Cluster("--tool-call-parser", "hermes", "--kv-cache-memory", "512MiB", LONG_COMPILE,
                 "--chat-template", str(template)) as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=600)
        asked = dict(model=client.models.list().data[0].id, max_tokens=60, seed=1, temperature=0)
        free = client.chat.completions.create(messages=messages, tools=TOOLS, **asked)
        assert json.loads(free.choices[0].message.tool_calls[0].function.arguments) == {"zone": "MARS"}
        held = client.chat.completions.create(messages=messages, tools=strict, **asked)
        called, = held.choices[0].message.tool_calls
        assert called.function.name == "get_time" and held.choices[0].finish_reason == "tool_calls"
        check("get_time", called.function.arguments)
        answer = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        both = client.chat.completions.create(messages=messages, tools=strict, response_format=answer, **asked)
        check("get_time", both.choices[0].message.tool_calls[0].function.arguments)
        text = client.chat.completions.create(messages=[{"role": "user", "content": "Which city has the Eiffel Tower?"}],
                                              tools=strict, response_format=answer, **asked).choices[0].message
        if text.tool_calls:
            check(text.tool_calls[0].function.name, text.tool_calls[0].function.arguments)
        else:
            jsonschema.validate(json.loads(text.content), CITY)


def test_thoughts_before_answers_of_a_form(tmp_path):
    """A model that is made to think, so long as its budget goes; then it writes what the schema wants."""
    template = tmp_path / "thinks.jinja"
    template.write_text(SHOWS_TOOLS.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"))
    with Cluster("--kv-cache-memory", "512MiB", LONG_COMPILE, "--reasoning-parser", "think",
                 "--chat-template", str(template)) as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=600)
        reflected = Reflected(c.grpc)
        asked = dict(model=client.models.list().data[0].id, messages=QUESTION, max_tokens=200, seed=1, temperature=0)
        schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        for budget in (2, 20):
            fields = dict(response_format=schema, extra_body={"thinking_token_budget": budget, "return_token_ids": True})
            choice, = client.chat.completions.create(**asked, **fields).choices
            thought = choice.message.reasoning_content
            first = reflected.message("DetokenizeRequest")(token_ids=choice.token_ids[:budget])
            assert thought and reflected.call("Detokenize", first).text.strip() == thought, "it would have gone on"
            jsonschema.validate(json.loads(choice.message.content), CITY)
            assert choice.finish_reason == "stop"
            events = list(client.chat.completions.create(stream=True, **asked, **fields))
            deltas = [event.choices[0].delta for event in events if event.choices]
            assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought
            assert "".join(delta.content or "" for delta in deltas) == choice.message.content
            chat = chat_request(reflected, QUESTION, 200, 1, temperature=0, tools=None, thinking_token_budget=budget)
            chat.base.structured.json_schema = json.dumps(CITY)
            assert by_grpc(reflected, chat) == (choice.message.content, thought, [], "stop")
        free, = client.chat.completions.create(extra_body={"thinking_token_budget": 5}, **asked).choices
        assert free.message.reasoning_content and free.message.content, "an answer comes behind a thought that is cut"


def test_responses(client, model):
    answer = client.responses.create(model=model, instructions="You are a helpful assistant.",
                                     input="What is the capital of France?", temperature=0, max_output_tokens=32)
    assert "Paris" in answer.output_text
    assert answer.status == "completed" and answer.usage.total_tokens > 0
    chat = client.chat.completions.create(
        model=model, temperature=0, max_tokens=32,
        messages=[{"role": "system", "content": "You are a helpful assistant."},
                  {"role": "user", "content": "What is the capital of France?"}])
    assert answer.output_text == chat.choices[0].message.content, "one engine, one answer"


def test_streamed_responses(client, model):
    arguments = dict(model=model, instructions="You are a helpful assistant.", temperature=0, max_output_tokens=32,
                     input="What is the capital of France?")
    with client.responses.stream(**arguments) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert types[0] == "response.created" and types[-1] == "response.completed"
    assert "response.output_text.delta" in types
    assert final.output_text == client.responses.create(**arguments).output_text


def test_a_stream_that_is_cut_says_so(client, model):
    events = list(client.responses.create(model=model, input="Say hi.", temperature=0, max_output_tokens=3,
                                          stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_responses_with_functions(client, model):
    tools = [{"type": "function", "strict": True} | each for each in (WEATHER, TIME)]
    with client.responses.stream(model=model, input=QUESTION, tools=tools, temperature=0, max_output_tokens=200,
                                 tool_choice={"type": "function", "name": "get_weather"}) as stream:
        for _ in stream:
            pass
        call = stream.get_final_response().output[0]
    assert call.type == "function_call" and call.name == "get_weather"
    check(call.name, call.arguments)
    after = client.responses.create(model=model, temperature=0, max_output_tokens=16, input=QUESTION + [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}])
    assert after.output_text


@pytest.mark.parametrize("field,value", [("previous_response_id", "resp_1"), ("background", True)])
def test_responses_that_would_be_stored_are_refused(client, model, field, value):
    with pytest.raises(openai.APIStatusError) as error:
        client.responses.create(model=model, input="x", **{field: value})
    assert error.value.status_code == 400 and field in str(error.value)


def test_messages(claude, client, model):
    arguments = dict(model=model, max_tokens=32, extra_body=GREEDY, system="You are a helpful assistant.",
                     messages=[{"role": "user", "content": "What is the capital of France?"}])
    answer = claude.messages.create(**arguments)
    assert "Paris" in answer.content[0].text and answer.stop_reason == "end_turn"
    prompt = {name: arguments[name] for name in ("model", "system", "messages")}
    counted = claude.messages.count_tokens(**prompt)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    with claude.messages.stream(**arguments) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == answer.usage.output_tokens


def test_what_claude_code_says_between_turns_leaves_the_prefix_cached(claude, model):
    story = " ".join(f"On day {day} the ship sailed {day * 7} miles." for day in range(1, 30))

    def ask(number, turns):
        return claude.messages.create(
            model=model, max_tokens=8, extra_body=GREEDY, messages=turns,
            system=[{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                    {"type": "text", "text": "You are a helpful assistant."}])

    turns = [{"role": "user", "content": story}, {"role": "system", "content": "900 tokens left"}]
    first = ask(1, turns)
    turns += [{"role": "assistant", "content": first.content[0].text}, {"role": "user", "content": "And then?"},
              {"role": "system", "content": "800 tokens left"}]
    second = ask(2, turns)
    tokens = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens > 0.9 * tokens, (first.usage, second.usage)


def test_what_codex_sends_is_taken(client, model):
    answer = client.responses.create(
        model=model, temperature=0, max_output_tokens=16, store=True, include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"}, prompt_cache_key="k", parallel_tool_calls=False,
        instructions="You are a helpful assistant.", tools=[{"type": "web_search"}],
        input=[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
               {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment/>"}]},
               {"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "What is the capital of France?"}]}])
    assert "Paris" in answer.output_text and answer.store is False and answer.reasoning.effort == "low"


def test_messages_stop_at_sequences(claude, model):
    whole = claude.messages.create(model=model, max_tokens=24, extra_body=GREEDY, messages=SAY_HI).content[0].text
    stop = whole.split()[1]
    answer = claude.messages.create(model=model, max_tokens=24, extra_body=GREEDY, messages=SAY_HI,
                                    stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == whole[:whole.index(stop)]


def test_messages_with_tools(claude, model):
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in (WEATHER, TIME)]
    arguments = dict(model=model, max_tokens=200, extra_body=GREEDY, messages=QUESTION, tools=tools,
                     tool_choice={"type": "tool", "name": "get_weather"})
    answer = claude.messages.create(**arguments)
    assert answer.stop_reason == "tool_use" and answer.content[0].name == "get_weather"
    jsonschema.validate(answer.content[0].input, PARAMETERS)
    with claude.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message().content[0]
    assert streamed.input == answer.content[0].input
    after = claude.messages.create(model=model, max_tokens=16, extra_body=GREEDY, messages=QUESTION + [
        {"role": "assistant", "content": [answer.content[0].model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[0].id,
                                      "content": "Sunny."}]}])
    assert after.content


def test_messages_go_on_with_a_begun_answer(claude, model):
    question = {"role": "user", "content": "What is the capital of France?"}
    answer = claude.messages.create(model=model, max_tokens=16, extra_body=GREEDY, messages=[
        question, {"role": "assistant", "content": "The capital of France is"}])
    assert answer.content[0].text.startswith(" Paris")


def test_messages_errors_are_anthropics(claude, model):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(model=model, max_tokens=4, messages=SAY_HI, extra_body={"temperature": 9})
    assert error.value.body["error"]["type"] == "invalid_request_error" and "temperature" in str(error.value)
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="no-such-model", max_tokens=4, messages=SAY_HI)
