"""n and best_of: Python's openai client and grpcio against real clusters."""

import os
import signal
import statistics
import threading

import openai
import pytest
from cluster import Cluster, wait_until
from test_grpc_client import Reflected

MASK = 2**64 - 1
SEED = 20_240_607
# 12 pages of 16 tokens and a rest.
PROMPT = [1000 + 7 * i for i in range(200)]


def choice_seed(seed, index):
    """docs/completions.md, "Several choices": the index-th number of SplitMix64."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.fixture(scope="module")
def client(pair):
    return openai.OpenAI(base_url=pair.http + "/v1", api_key="none", max_retries=0)


def create(client, model, **arguments):
    arguments = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.9, "seed": SEED} | arguments
    return client.completions.create(model=model, **arguments)


def shown(choice):
    """What must not depend on who else runs."""
    return choice.text, choice.finish_reason, tuple(choice.logprobs.token_logprobs)


def test_each_choice_is_the_request_with_its_seed(client, pair):
    together = create(client, pair.model_id, n=4, logprobs=1)
    assert [c.index for c in together.choices] == [0, 1, 2, 3]
    alone = [create(client, pair.model_id, seed=choice_seed(SEED, i), logprobs=1) for i in range(4)]
    assert [shown(c) for c in together.choices] == [shown(a.choices[0]) for a in alone]
    assert len({c.text for c in together.choices}) == 4
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert together.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)


def test_greedy_choices_are_equal(client, pair):
    answer = create(client, pair.model_id, n=3, temperature=0)
    assert len({c.text for c in answer.choices}) == 1


def test_the_prompts_pages_are_computed_once(client, pair):
    def counts():
        return [pair.metric(f"flotilla_scheduler_{name}_total") for name in ("prompt_tokens", "cached_tokens")]

    before = counts()
    answer = create(client, pair.model_id, prompt=PROMPT, n=8, max_tokens=4)
    wait_until(lambda: counts()[0] - before[0] == 8 * 200, 10, "all choices are counted")
    assert counts()[1] - before[1] == 7 * 192, "whole pages, by all but one"
    assert answer.usage.prompt_tokens == 200
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_streams_interleave_under_their_indices(client, pair):
    whole = create(client, pair.model_id, prompt=["One", "Two two"], n=2, logprobs=0)
    texts, order, reasons = [""] * 4, [], {}
    for chunk in create(client, pair.model_id, prompt=["One", "Two two"], n=2, logprobs=0, stream=True):
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] += choice.text
            order.append(choice.index)
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [c.text for c in whole.choices]
    assert reasons == {c.index: c.finish_reason for c in whole.choices}
    assert order != sorted(order), "they come as they are generated, not one after the other"


def test_chat_streams_every_choice(client, pair):
    arguments = dict(model=pair.model_id, n=3, max_tokens=12, temperature=0.9, seed=SEED,
                     messages=[{"role": "user", "content": "Tell me a story."}])
    whole = client.chat.completions.create(**arguments)
    texts, roles = [""] * 3, [0] * 3
    for chunk in client.chat.completions.create(stream=True, **arguments):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role is not None
    assert texts == [c.message.content for c in whole.choices]
    assert roles == [1, 1, 1]


def test_a_stop_string_ends_its_choice_only(client, pair):
    free = create(client, pair.model_id, n=4)
    words = [set(c.text.split()) for c in free.choices]
    stop = next(w for w in sorted(words[1]) if not any(w in free.choices[i].text for i in (0, 2, 3)))
    stopped = create(client, pair.model_id, n=4, stop=[stop])
    for before, after in zip(free.choices, stopped.choices):
        assert after.text == before.text.split(stop)[0]
        assert after.finish_reason == ("stop" if before.index == 1 else before.finish_reason)


def test_best_of_answers_the_most_likely(client, pair):
    every = create(client, pair.model_id, n=6, logprobs=0)
    ranked = sorted(every.choices, key=lambda c: -statistics.fmean(c.logprobs.token_logprobs))
    best = create(client, pair.model_id, n=2, best_of=6)
    assert [c.text for c in best.choices] == [c.text for c in ranked[:2]]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None
    assert best.usage == every.usage
    with pytest.raises(openai.BadRequestError) as error:
        create(client, pair.model_id, n=1, best_of=2, stream=True)
    assert error.value.body["param"] == "best_of"


def test_echo_comes_with_each_choice(client, pair):
    answer = create(client, pair.model_id, prompt="The capital of France is", n=2, echo=True, logprobs=0,
                    extra_body={"ignore_eos": True})
    one, two = answer.choices
    assert one.text != two.text
    for choice in answer.choices:
        assert choice.text.startswith("The capital of France is")
        assert len(choice.logprobs.tokens) == 5 + 24
    assert one.logprobs.token_logprobs[:5] == two.logprobs.token_logprobs[:5]


def generate(client, n, best_of, **changes):
    request = client.message("GenerateRequest")(text="Once upon a time", **changes)
    request.stopping.max_tokens = 24
    request.sampling.temperature, request.sampling.seed = 0.9, SEED
    request.sampling.n, request.sampling.best_of = n, best_of
    return request


def read(responses):
    texts, last = {}, None
    for last in responses:
        for choice in last.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[i] for i in sorted(texts)], last


def test_grpc_of_router_and_engine_say_the_same(client, pair):
    with Cluster("--tp", "1", "--kv-cache-memory", "256MiB", command="engine") as engine:
        engine_client, router_client = Reflected(engine.grpc), Reflected(pair.grpc)
        for n, best_of in ((4, 4), (2, 6)):
            expected = create(client, pair.model_id, n=n, best_of=best_of)
            for grpc_client in (router_client, engine_client):
                texts, last = read(grpc_client.call("Generate", generate(grpc_client, n, best_of)))
                assert texts == [c.text for c in expected.choices]
                assert last.usage.completion_tokens == expected.usage.completion_tokens
                assert last.usage.prompt_tokens == expected.usage.prompt_tokens


def test_a_client_that_leaves_ends_every_choice(client, pair):
    running = lambda: pair.metric("flotilla_scheduler_requests_running")  # noqa: E731
    stream = create(client, pair.model_id, n=6, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    wait_until(lambda: running() == 6, 20, "all choices run")
    stream.close()
    wait_until(lambda: running() == 0, 20, "none runs")
    assert pair.metric("flotilla_scheduler_kv_pages_unaccounted") == 0


def test_a_killed_worker_changes_nothing():
    with Cluster("--tp", "2", "--kv-cache-memory", "384MiB", disturbed=True) as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=300)

        def run():
            answer = create(client, c.model_id, n=4, best_of=6, max_tokens=64, logprobs=2,
                            extra_body={"ignore_eos": True})
            return [shown(choice) for choice in answer.choices], answer.usage.completion_tokens

        undisturbed, disturbed = run(), []
        thread = threading.Thread(target=lambda: disturbed.append(run()))
        generated = c.metric("flotilla_scheduler_generation_tokens_total")
        thread.start()
        wait_until(lambda: c.metric("flotilla_scheduler_generation_tokens_total") > generated + 30,
                   60, "it is under way")
        os.kill(c.pids("worker")[1], signal.SIGKILL)
        thread.join(300)
        assert disturbed == [undisturbed]
