"""Python's own openai client against a real cluster: two replicas, TP 2."""

import asyncio
import math
import time

import openai
import pytest


@pytest.fixture(scope="module")
def client(pair):
    return openai.OpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client):
    models = client.models.list().data
    assert len(models) == 1
    return models[0].id


PROMPT = "The capital of France is"


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("no-such-model")
    assert "no-such-model" in str(error.value)


def test_sensible_words(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == 13


def test_streaming_equals_whole(client, model):
    arguments = dict(model=model, prompt=PROMPT, max_tokens=40, temperature=0.8, seed=7)
    whole = client.completions.create(**arguments)
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **arguments))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert len([c for c in chunks if c.choices]) > 4, "tokens come one by one, not at the end"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1


def test_a_deadline_ends_a_stream_on_its_way(client, model):
    begin = time.monotonic()
    chunks = list(client.completions.create(
        model=model, prompt=PROMPT, max_tokens=1500, stream=True, extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Timeout-Ms": "1000"}))
    assert chunks[-1].choices[0].finish_reason == "deadline"
    assert len(chunks) > 1, "it had begun"
    assert time.monotonic() - begin >= 1


def test_seed_decides(client, model):
    def sample(seed):
        return client.completions.create(
            model=model, prompt="Once upon a time", max_tokens=24, temperature=1.0, seed=seed
        ).choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(s) for s in range(4)}) > 1


def test_logprobs(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 5
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert value <= 0 and len(top) >= 3
        assert math.isclose(max(top.values()), value), "greedy picks the most likely token"
        assert token in top
    assert logprobs.text_offset[0] == 0


def test_echo_and_prompt_logprobs(client, model):
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=0, temperature=0, logprobs=0, echo=True
    )
    choice = answer.choices[0]
    assert choice.text == PROMPT
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert len(choice.logprobs.tokens) == 5

    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=1, temperature=0, extra_body={"prompt_logprobs": 2}
    )
    entries = answer.choices[0].model_dump()["prompt_logprobs"]
    assert entries[0] is None and len(entries) == 5
    values = [value for entry in entries[1:] for value in entry.values()]
    assert all({"logprob", "rank", "decoded_token"} <= set(value) for value in values)


def test_token_id_prompt_and_ids_back(client, model):
    text = client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0)
    ids = client.completions.create(
        model=model, prompt=[504, 3575, 282, 4649, 314], max_tokens=6, temperature=0, logprobs=0,
        extra_body={"return_tokens_as_token_ids": True},
    )
    assert ids.choices[0].text == text.choices[0].text
    assert all(token.startswith("token_id:") for token in ids.choices[0].logprobs.tokens)


def test_ignore_eos_and_min_tokens(client, model):
    prompt = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    short = client.completions.create(model=model, prompt=prompt, max_tokens=200, temperature=0)
    assert short.choices[0].finish_reason == "stop"
    n = short.usage.completion_tokens
    assert n < 200
    full = client.completions.create(
        model=model, prompt=prompt, max_tokens=n + 20, temperature=0, extra_body={"ignore_eos": True}
    )
    assert full.usage.completion_tokens == n + 20 and full.choices[0].finish_reason == "length"
    longer = client.completions.create(
        model=model, prompt=prompt, max_tokens=n + 40, temperature=0, extra_body={"min_tokens": n + 10}
    )
    assert longer.usage.completion_tokens >= n + 10


def test_a_stop_string_within_min_tokens_is_text(client, model):
    arguments = dict(model=model, prompt=PROMPT, max_tokens=40, temperature=0)
    whole = client.completions.create(**arguments).choices[0].text
    stop = whole.split()[0]  # ends in one of the first tokens
    stopped = client.completions.create(stop=[stop], **arguments)
    assert stopped.choices[0].finish_reason == "stop" and stopped.usage.completion_tokens < 5
    for stream in (False, True):
        answer = client.completions.create(stop=[stop], stream=stream, extra_body={"min_tokens": 20}, **arguments)
        text = "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
        assert stop in text and whole.startswith(text)


COUNTING = "1 2 3 4 1 2 3 4 1 2 3 4 1 2"


def tokens_of(client, model, **arguments):
    """Ids of 48 tokens that continue the counting, greedily if nothing else is said."""
    extra = {"ignore_eos": True, "return_token_ids": True} | arguments.pop("extra_body", {})
    answer = client.completions.create(
        **dict(model=model, prompt=COUNTING, max_tokens=48, temperature=0, extra_body=extra) | arguments
    )
    return answer.choices[0].model_dump()["token_ids"]


def most_repeated(ids):
    return max(ids.count(i) for i in ids)


def test_penalties_keep_from_repeating(client, model):
    plain = tokens_of(client, model)
    assert most_repeated(plain) >= 16, "without penalties the model repeats itself"
    for penalties in (
        dict(frequency_penalty=2.0),
        dict(presence_penalty=2.0),
        dict(extra_body={"repetition_penalty": 1.5}),
        dict(presence_penalty=0.5, frequency_penalty=0.5, extra_body={"repetition_penalty": 1.2}),
    ):
        penalised = tokens_of(client, model, **penalties)
        assert most_repeated(penalised) < most_repeated(plain) / 2, penalties
        # On the other replica, and with the prompt's pages in the cache: the history is the same.
        for _ in range(3):
            assert tokens_of(client, model, **penalties) == penalised
    # Below 0 they make it repeat all the more.
    assert most_repeated(tokens_of(client, model, frequency_penalty=-2.0)) > most_repeated(plain)


def test_penalties_leave_logprobs_raw(client, model):
    plain = client.completions.create(model=model, prompt=COUNTING, max_tokens=1, temperature=0, logprobs=5)
    biased = client.completions.create(
        model=model, prompt=COUNTING, max_tokens=1, temperature=0, logprobs=5, logit_bias={"100": 100},
        extra_body={"return_token_ids": True},
    )
    assert biased.choices[0].model_dump()["token_ids"] == [100]
    best, chosen = plain.choices[0].logprobs, biased.choices[0].logprobs
    assert chosen.token_logprobs[0] < best.token_logprobs[0]
    for token, value in best.top_logprobs[0].items():
        assert chosen.top_logprobs[0][token] == value


def test_logit_bias(client, model):
    first = tokens_of(client, model, max_tokens=1)[0]
    assert tokens_of(client, model, max_tokens=1, logit_bias={str(first): -100})[0] != first
    assert tokens_of(client, model, max_tokens=6, logit_bias={"3000": 100}) == [3000] * 6
    banned = {str(i): -100 for i in set(tokens_of(client, model, temperature=0.9, seed=5))}
    assert not set(map(int, banned)) & set(tokens_of(client, model, temperature=0.9, seed=5, logit_bias=banned))


def test_every_sampling_field_together(client, model):
    arguments = dict(
        temperature=0.9, top_p=0.95, seed=11, presence_penalty=0.3, frequency_penalty=0.2,
        logit_bias={"30": 1.5, "42": -3}, extra_body={"top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1},
    )
    ids = tokens_of(client, model, **arguments)
    assert len(ids) == 48
    assert [tokens_of(client, model, **arguments) for _ in range(2)] == [ids, ids]
    assert tokens_of(client, model, **arguments | {"seed": 12}) != ids


def test_many_at_once_equal_alone(pair, client, model):
    prompts = [f"{i} little ducks went out one day, over the hills" for i in range(16)]
    arguments = dict(model=model, max_tokens=16, temperature=0.7, seed=3, logprobs=1)

    def key(answer):
        return answer.choices[0].text, tuple(answer.choices[0].logprobs.token_logprobs)

    alone = [key(client.completions.create(prompt=p, **arguments)) for p in prompts]

    async def together():
        async with openai.AsyncOpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0) as c:
            answers = await asyncio.gather(*[c.completions.create(prompt=p, **arguments) for p in prompts])
        return [key(a) for a in answers]

    assert asyncio.run(together()) == alone


def test_several_prompts_in_one_call(client, model):
    answer = client.completions.create(model=model, prompt=[PROMPT, "2 + 2 ="], max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "Paris" in answer.choices[0].text


BAD = [
    (dict(temperature=3.0), "temperature"),
    (dict(max_tokens=-1), "max_tokens"),
    (dict(max_tokens=100000), "max_tokens"),
    (dict(top_p=0.0), "top_p"),
    (dict(logprobs=21), "logprobs"),
    (dict(presence_penalty=2.5), "presence_penalty"),
    (dict(frequency_penalty=-2.5), "frequency_penalty"),
    (dict(logit_bias={"49152": 1}), "logit_bias"),
    (dict(logit_bias={"5": 101}), "logit_bias"),
    (dict(logit_bias={"Paris": 1}), "logit_bias"),
    (dict(extra_body={"repetition_penalty": 0}), "repetition_penalty"),
    (dict(extra_body={"min_p": 1.5}), "min_p"),
    (dict(prompt=[1, 2, 49152]), "prompt"),
    (dict(prompt=[]), "prompt"),
    (dict(prompt="a " * 9000), "prompt"),
    (dict(extra_body={"min_tokens": 50}), "min_tokens"),
    (dict(extra_body={"max_tokens": "many"}), "max_tokens"),
    (dict(extra_body={"top_k": 1.5}), "top_k"),
]


@pytest.mark.parametrize("change,field", BAD, ids=[f"{i}-{field}" for i, (_, field) in enumerate(BAD)])
def test_bad_fields_are_named(client, model, change, field):
    arguments = dict(model=model, prompt=PROMPT, max_tokens=4, temperature=0) | change
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**arguments)
    assert field in str(error.value)
    assert error.value.body["type"] == "invalid_request_error"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="gpt-9", prompt=PROMPT)
    assert "gpt-9" in str(error.value)


def test_round_robin_splits_evenly(pair, client, model):
    def per_replica():
        return sorted(
            (k, v) for k, v in pair.metrics().items() if k.startswith("flotilla_scheduler_request_success_total")
        )

    def totals(samples):
        out = {}
        for key, value in samples:
            replica = key.split('replica="')[1].split('"')[0]
            out[replica] = out.get(replica, 0) + value
        return out

    before = totals(per_replica())
    for i in range(20):
        client.completions.create(model=model, prompt=f"Number {i}", max_tokens=1)
    after = totals(per_replica())
    assert sorted(after[r] - before.get(r, 0) for r in after) == [10, 10]


def test_timing_adds_up(client, model):
    stages = ("router_seconds", "engine_seconds", "queue_seconds", "prefill_seconds", "decode_seconds")
    for stream in (False, True):
        begin = time.monotonic()
        answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=32, temperature=0, stream=stream,
                                           extra_body={"return_timing": True})
        chunks = list(answer) if stream else [answer]
        seconds = time.monotonic() - begin
        timing = chunks[-1].model_extra["timing"]
        assert not any("timing" in (chunk.model_extra or {}) for chunk in chunks[:-1])
        assert abs(sum(timing[stage] for stage in stages) - timing["total_seconds"]) < 1e-3
        assert min(timing[stage] for stage in stages) >= 0
        assert 0 < timing["decode_seconds"] < timing["total_seconds"] <= seconds
        assert timing["wait_reason"] == "next_step"
