"""Embeddings: Python's openai client and grpcio against real clusters."""

import base64
import itertools
import os
import signal
import struct
import threading

import grpc
import openai
import pytest
from cluster import Cluster, wait_until
from test_grpc_client import Reflected

HIDDEN_SIZE = 576
TEXT = "The capital of France is"
# 12 pages of 16 tokens and a rest.
IDS = [1000 + 7 * i for i in range(200)]
OPTIONS = [{"pooling": pooling, "normalize": normalize}
           for pooling, normalize in itertools.product(("last", "mean"), (False, True))]


def openai_client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(pair):
    return openai_client(pair)


def vectors(client, model, given, extra=None, **arguments):
    """As tuples of the 32-bit floats that were sent, in the inputs' order."""
    answer = client.embeddings.create(
        model=model, input=given, encoding_format="base64", extra_body=extra, **arguments)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    raw = [base64.b64decode(each.embedding) for each in answer.data]
    return [struct.unpack(f"<{len(each) // 4}f", each) for each in raw]


def length(vector):
    return sum(x * x for x in vector) ** 0.5


def test_every_form_of_input(client, pair):
    [[text], texts] = [vectors(client, pair.model_id, given) for given in (TEXT, [TEXT, "Water", TEXT])]
    assert len(text) == HIDDEN_SIZE and texts[0] == texts[2] == text and texts[1] != text
    [[ids], lists] = [vectors(client, pair.model_id, given) for given in (IDS, [IDS, IDS[:7]])]
    assert lists[0] == ids and lists[1] != ids
    assert all(abs(length(vector) - 1) < 1e-6 for vector in (text, ids, *texts, *lists))


def test_both_encodings_are_the_same_floats(client, pair):
    for extra in OPTIONS:
        base64_vectors = vectors(client, pair.model_id, [TEXT, "Water"], extra)
        answer = client.embeddings.create(
            model=pair.model_id, input=[TEXT, "Water"], encoding_format="float", extra_body=extra,
            dimensions=HIDDEN_SIZE, user="me")
        as_floats = [struct.unpack(f"<{HIDDEN_SIZE}f", struct.pack(f"<{HIDDEN_SIZE}f", *each.embedding))
                     for each in answer.data]
        assert as_floats == base64_vectors
    # What the client does if nothing is said: it asks for base64 and decodes it itself.
    by_default = client.embeddings.create(model=pair.model_id, input=TEXT)
    assert tuple(by_default.data[0].embedding) == vectors(client, pair.model_id, TEXT)[0]
    assert by_default.object == "list" and by_default.data[0].object == "embedding"
    assert by_default.model == pair.model_id


def test_usage_counts_the_inputs(client, pair):
    answer = client.embeddings.create(model=pair.model_id, input=[IDS, IDS[:7]])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 207


def test_poolings_differ_and_normalising_keeps_the_direction(client, pair):
    found = {}
    for extra in OPTIONS:
        [found[extra["pooling"], extra["normalize"]]] = vectors(client, pair.model_id, IDS, extra)
    for pooling in ("last", "mean"):
        raw, unit = found[pooling, False], found[pooling, True]
        assert abs(length(raw) - 1) > 1e-3
        assert unit == pytest.approx([x / length(raw) for x in raw], rel=1e-6)
    assert found["last", False] != found["mean", False]
    # The mean of one token is that token's state.
    one = [vectors(client, pair.model_id, [5], {"pooling": p, "normalize": False}) for p in ("last", "mean")]
    assert one[0] == one[1]


@pytest.mark.parametrize("fields, param", [
    ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": [[]]}, "input"), ({"input": [-1]}, "input"),
    ({"input": [10**9]}, "input"), ({"input": ["a"] * 2049}, "input"), ({"input": [5] * 9000}, "input"),
    ({"input": "a", "dimensions": 128}, "dimensions"), ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "extra_body": {"pooling": "cls"}}, "pooling"),
    ({"input": "a", "extra_body": {"normalize": "yes"}}, "normalize"),
])
def test_bad_fields_are_named(client, pair, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model=pair.model_id, **{"encoding_format": "float", **fields})
    assert error.value.body["param"] == param
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")


def test_a_thousand_inputs(client, pair):
    texts = [f"text {i % 10}" for i in range(1000)]
    data = client.embeddings.create(model=pair.model_id, input=texts, encoding_format="float").data
    assert [entry.index for entry in data] == list(range(1000))
    assert all(data[i].embedding == data[i % 10].embedding for i in range(1000))


def test_grpc_of_router_and_engine_say_the_same(client, pair):
    with Cluster("--tp", "1", "--kv-cache-memory", "256MiB", command="engine") as engine:
        for target, options in itertools.product((pair.grpc, engine.grpc), OPTIONS):
            stub = Reflected(target)
            message = stub.message("EmbedRequest")(text=TEXT, normalize=options["normalize"])
            message.pooling = ["last", "mean"].index(options["pooling"]) + 1
            message.request_id = "mine"
            answer = stub.call("Embed", message)
            assert tuple(answer.embedding) == vectors(client, pair.model_id, TEXT, options)[0]
            assert answer.usage.prompt_tokens == 5 and answer.usage.completion_tokens == 0
            assert answer.request_id == "mine" and answer.model == pair.model_id
            with pytest.raises(grpc.RpcError) as error:
                stub.call("Embed", stub.message("EmbedRequest")())
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_embeddings_and_streams_do_not_change_each_other(client, pair):
    """In the same batches, from a cold cache and from a warm one, alone and together: the same bits."""
    inputs = [[(31 * i + 7 * j) % 9000 for j in range(1 + 37 * i)] for i in range(12)]

    def generate():
        answer = client.completions.create(model=pair.model_id, prompt=IDS, max_tokens=64, temperature=0.8, seed=3,
                                           logprobs=1, extra_body={"ignore_eos": True})
        return answer.choices[0].text, tuple(answer.choices[0].logprobs.token_logprobs)

    alone = [[vectors(client, pair.model_id, each, extra)[0] for each in inputs] for extra in OPTIONS]
    text, texts = generate(), []
    threads = [threading.Thread(target=lambda: texts.append(generate())) for _ in range(6)]
    for thread in threads:
        thread.start()
    together = [vectors(client, pair.model_id, inputs, extra) for extra in OPTIONS]
    for thread in threads:
        thread.join(300)
    assert together == alone
    assert texts == [text] * 6
    assert pair.metric("flotilla_scheduler_kv_pages_unaccounted") == 0


def test_last_reads_the_prefix_cache_and_mean_fills_it():
    with Cluster("--tp", "1", "--kv-cache-memory", "256MiB") as c:
        client = openai_client(c)

        def cached(pooling):
            answer = client.embeddings.create(model=c.model_id, input=IDS, extra_body={"pooling": pooling})
            return answer.usage.prompt_tokens_details["cached_tokens"]

        assert [cached(pooling) for pooling in ("mean", "mean", "last")] == [0, 0, 192]


def test_a_client_that_leaves_ends_every_input(client, pair):
    running = lambda: sum(pair.metric(f"flotilla_scheduler_requests_{state}")  # noqa: E731
                          for state in ("running", "waiting"))
    hasty = client.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        hasty.embeddings.create(model=pair.model_id, input=[[i % 9000] + [7] * 1500 for i in range(200)],
                                extra_body={"pooling": "mean"})
    wait_until(lambda: running() == 0, 60, "none runs")
    assert pair.metric("flotilla_scheduler_kv_pages_unaccounted") == 0


@pytest.mark.parametrize("victim, replicas", [("worker", "1"), ("scheduler", "2")])
def test_a_killed_process_changes_nothing(victim, replicas):
    """A worker's requests begin again in the next epoch, a scheduler's on the other replica."""
    with Cluster("--replicas", replicas, "--tp", "2", "--kv-cache-memory", "256MiB", disturbed=True) as c:
        client = openai_client(c)
        inputs = [[(31 * i + 7 * j) % 9000 for j in range(700)] for i in range(6)]

        def run():
            return vectors(client, c.model_id, inputs, {"pooling": "mean"})

        undisturbed, disturbed = run(), []
        thread = threading.Thread(target=lambda: disturbed.append(run()))
        prompts = c.metric("flotilla_scheduler_prompt_tokens_total")
        thread.start()
        wait_until(lambda: c.metric("flotilla_scheduler_prompt_tokens_total") > prompts, 60, "it is under way")
        os.kill(c.pids(victim)[0], signal.SIGKILL)
        thread.join(300)
        assert disturbed == [undisturbed]
