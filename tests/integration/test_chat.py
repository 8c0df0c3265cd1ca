"""Chat with a real cluster: Python's openai client, two replicas, TP 2."""

import asyncio

import openai
import pytest


@pytest.fixture(scope="module")
def client(pair):
    return openai.OpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
QUESTION = [SYSTEM, {"role": "user", "content": "What is the capital of France?"}]


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_sensible_words(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_completion_tokens=32)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop", "the model's own end of turn"
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streaming_equals_whole(client, model):
    arguments = dict(model=model, messages=QUESTION, max_tokens=40, temperature=0.8, seed=7)
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **arguments))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_stream_helper_understands_it(client, model):
    """The client's own accumulator, which checks every chunk's form."""
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=24, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert "Paris" in final.choices[0].message.content


def test_a_conversation_goes_on(client, model):
    messages = QUESTION + [{"role": "assistant", "content": "Paris."},
                           {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=32)
    assert "Rome" in answer.choices[0].message.content


def test_an_answer_that_has_begun_goes_on(client, model):
    """What the model said, cut somewhere and given back, is followed by what it said then."""
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    text = whole.choices[0].message.content
    begun = text[:text.index("Paris")].rstrip()
    rest = client.chat.completions.create(
        model=model, messages=QUESTION + [{"role": "assistant", "content": begun}], temperature=0, max_tokens=32,
        extra_body={"continue_final_message": True})
    assert begun and begun + rest.choices[0].message.content == text


@pytest.fixture(scope="module")
def long_answer(client, model):
    """Some greedy text and its tokens, to cut elsewhere."""
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story about a fox."}], temperature=0,
        max_tokens=80, logprobs=True)
    return answer.choices[0]


def test_stop_strings_split_over_tokens(client, model, long_answer):
    """For many places of the text: a stop string from the middle of one token to the middle of a later one."""
    text = long_answer.message.content
    ends, at = [], 0
    for entry in long_answer.logprobs.content:
        at += len(entry.token)
        ends.append(at)
    tried = 0
    for left, right in zip(ends[3:], ends[5:]):
        stop = text[left - 1:right - 1]  # holds the end of two tokens
        first = text.find(stop)
        if first < 0 or len(stop) < 3:
            continue
        tried += 1
        chunks = list(client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Tell me a story about a fox."}], temperature=0,
            max_tokens=80, stop=[stop], stream=True))
        assert text_of(chunks) == text[:first], stop
        assert chunks[-1].choices[0].finish_reason == "stop"
        if tried == 12:
            return
    pytest.fail("the text had no place to try")


def test_emoji_split_over_tokens(client, model):
    """Forced out by bias towards the tokens of one emoji: each character comes whole, in one chunk."""
    emoji = "🙂"
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Repeat exactly: {emoji}{emoji}{emoji}{emoji}"}],
        temperature=0, max_tokens=48, logprobs=True, stream=True)
    chunks = list(answer)
    text = text_of(chunks)
    entries = [e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    joined = b"".join(bytes(e.bytes) for e in entries)
    assert emoji in text, text
    split = [e for e in entries if b"\xf0\x9f" in bytes(e.bytes) and "\ufffd" in e.token]
    assert split, "the emoji is several tokens in this vocabulary"
    assert "\ufffd" not in text
    assert text.encode() in joined
    for chunk in chunks:
        (chunk.choices[0].delta.content or "").encode("utf-8", "strict")


def test_logprobs_in_chat_form(client, model, long_answer):
    joined = b"".join(bytes(entry.bytes) for entry in long_answer.logprobs.content)
    assert long_answer.message.content.encode() in joined
    top = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=3, logprobs=True,
                                         top_logprobs=3).choices[0].logprobs.content
    for entry in top:
        assert [t.token for t in entry.top_logprobs][0] == entry.token, "greedy: the most likely one"
        assert sorted((t.logprob for t in entry.top_logprobs), reverse=True) == [t.logprob for t in entry.top_logprobs]


def test_a_hundred_conversations_at_once(pair, model):
    async def talk(client, i):
        messages = [{"role": "user", "content": f"Count from {i} to {i + 3}."}]
        stream = await client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=16,
                                                      stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def all_of(count):
        async with openai.AsyncOpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0, timeout=600) as c:
            return await asyncio.gather(*(talk(c, i) for i in range(count)))

    async def one_by_one(numbers):
        async with openai.AsyncOpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0, timeout=600) as c:
            return [await talk(c, i) for i in numbers]

    together = asyncio.run(all_of(100))
    assert len(together) == 100 and all(together)
    some = [0, 13, 42, 77, 99]
    assert asyncio.run(one_by_one(some)) == [together[i] for i in some], "alone or among a hundred: the same"


@pytest.mark.parametrize("fields,param", [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": QUESTION, "top_logprobs": 2}, "top_logprobs"),
    ({"messages": QUESTION, "extra_body": {"chat_template": "{{ x }}"}}, "chat_template")])
def test_errors_name_the_field(client, model, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, **fields)
    assert error.value.param == param
