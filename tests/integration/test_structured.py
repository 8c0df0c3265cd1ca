"""Structured output: 200 random schemas whose outputs all validate, every other kind, and hostile grammars that
each get a 400 in time while streams go on."""

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import jsonschema
import openai
import pytest

from cluster import LONG_COMPILE, Cluster, ClusterError, wait_until
from hostile_grammars import LIST
from random_schemas import LEAST_DEPTH, depth, random_schema
from test_grpc_client import Reflected

SCHEMAS = 200
MAX_TOKENS = 1500
MOST_COMPILE_MS = 1600  # of the 2 s in which a grammar is refused (--grammar-timeout-ms)
# For a refusal, by a machine that others use too. Without its limits it would take minutes or all memory.
MOST_SECONDS = 15


@pytest.fixture(scope="module")
def cluster():
    with Cluster("--kv-cache-memory", "512MiB", LONG_COMPILE) as c:
        c.ends = bias_of_ends(c)
        assert len(c.ends) >= 3
        yield c


@pytest.fixture(scope="module")
def client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=600)


# A small model repeats what it wrote, so that what refers to itself would never end; it is made to like
# ends. (Which is still its choice at each level.)
ENDS = ["null", " null", "[]", " []", "]"]
END_BIAS = 12


def bias_of_ends(cluster):
    rpc = Reflected(cluster.grpc)
    ids = [rpc.call("Tokenize", rpc.message("TokenizeRequest")(text=text)).token_ids for text in ENDS]
    return {str(tokens[0]): END_BIAS for tokens in ids if len(tokens) == 1}


def chat(client, cluster, schema, seed):
    return client.chat.completions.create(
        model=cluster.model_id, messages=[{"role": "user", "content": f"Give me example number {seed} as JSON."}],
        max_completion_tokens=MAX_TOKENS, temperature=0.8, seed=seed, logit_bias=cluster.ends,
        response_format={"type": "json_schema", "json_schema": {"name": "example", "schema": schema, "strict": True}})


def test_outputs_of_random_schemas_validate(client, cluster):
    schemas = [random_schema(seed) for seed in range(SCHEMAS)]
    assert all(depth_of_schema(schema) >= LEAST_DEPTH for schema in schemas)
    assert sum("$defs" in schema for schema in schemas) > SCHEMAS / 4
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: chat(client, cluster, schemas[i], i), range(SCHEMAS)))
    for seed, (schema, answer) in enumerate(zip(schemas, answers)):
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", (seed, choice)
        value = json.loads(choice.message.content)
        jsonschema.validate(value, schema)
        assert depth(value) >= LEAST_DEPTH


def depth_of_schema(schema):
    inner = schema.get("properties", {}).values()
    items = [schema["items"]] if isinstance(schema.get("items"), dict) else []
    own = 1 if schema.get("type") in ("object", "array") else 0
    return own + max((depth_of_schema(value) for value in [*inner, *items]), default=0)


def test_the_same_bytes_alone_and_in_a_batch(client, cluster):
    seeds = range(8)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: chat(client, cluster, random_schema(i), i), seeds))
    alone = [chat(client, cluster, random_schema(i), i) for i in seeds]
    assert [a.choices[0].message.content for a in alone] == [a.choices[0].message.content for a in together]


def test_every_kind(cluster):
    def text(**fields):
        return cluster.complete(prompt="The answer is", max_tokens=200, temperature=1, seed=3, **fields)["choices"][0]

    choice = text(structured_outputs={"choice": ["maybe", "certainly not"]})
    assert choice["text"] in ("maybe", "certainly not") and choice["finish_reason"] == "stop"
    regex = text(structured_outputs={"regex": r"[0-9]{3}-[a-f]{2,5}"})
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2,5}", regex["text"])
    grammar = text(guided_grammar='root ::= pair ("," pair)?\npair ::= [a-z]{1,4} "=" [0-9]{1,3}')
    assert re.fullmatch(r"[a-z]{1,4}=[0-9]{1,3}(,[a-z]{1,4}=[0-9]{1,3})?", grammar["text"])
    assert text(guided_json={"const": {"a": [1, None]}})["text"].replace(" ", "") == '{"a":[1,null]}'
    tag = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}
    tagged = text(structured_outputs={"structural_tag": json.dumps({"format": {
        "type": "tags_with_separator", "tags": [tag], "separator": " ", "at_least_one": True, "stop_after_first": False}})})
    assert re.fullmatch(r"<n>[0-9]{2}</n>( <n>[0-9]{2}</n>)*", tagged["text"]) or tagged["finish_reason"] == "length"
    assert re.match(r"<n>[0-9]{2}</n>", tagged["text"])
    brief = text(response_format={"type": "json_object"}, logit_bias={})
    assert brief["text"].startswith("{")


def test_ends_only_where_the_grammar_may(cluster):
    def complete(**fields):
        return cluster.complete(prompt="Count:", temperature=0, **fields)["choices"][0]

    pattern = {"structured_outputs": {"regex": "(ab){20}"}}
    whole = complete(max_tokens=100, ignore_eos=True, **pattern)
    assert (whole["text"], whole["finish_reason"]) == ("ab" * 20, "stop")
    cut = complete(max_tokens=5, **pattern)
    assert cut["finish_reason"] == "length" and ("ab" * 20).startswith(cut["text"])
    assert complete(max_tokens=100, min_tokens=90, **pattern)["text"] == "ab" * 20
    stopped = complete(max_tokens=100, stop="bab", **pattern)
    assert (stopped["text"], stopped["finish_reason"]) == ("a", "stop")
    longer = {"structured_outputs": {"regex": "a*"}}
    assert len(complete(max_tokens=100, min_tokens=50, return_token_ids=True, **longer)["token_ids"]) >= 50


def test_logprobs_are_those_of_the_raw_logits(cluster):
    free = cluster.complete(prompt="The capital of France is", max_tokens=1, temperature=0, logprobs=5)
    tied = cluster.complete(prompt="The capital of France is", max_tokens=1, temperature=0, logprobs=5,
                            structured_outputs={"choice": [" Rome"]})
    assert " Rome".startswith(tied["choices"][0]["text"])
    most_likely = free["choices"][0]["logprobs"]["top_logprobs"][0]
    beside = tied["choices"][0]["logprobs"]["top_logprobs"][0]
    assert len(most_likely) == 5
    assert most_likely.items() <= beside.items()
    assert tied["choices"][0]["logprobs"]["token_logprobs"][0] < 0


def test_grpc_has_the_same(cluster):
    rpc = Reflected(cluster.grpc)
    request = rpc.message("GenerateRequest")(text="Yes or no?")
    request.stopping.max_tokens = 20
    request.structured.choice.options.append("no")
    answers = list(rpc.call("Generate", request))
    assert "".join(choice.text for answer in answers for choice in answer.choices) == "no"
    request.structured.regex = "(("
    with pytest.raises(grpc.RpcError) as refused:
        list(rpc.call("Generate", request))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith("structured.regex: ")


def test_grammars_are_counted(cluster):
    def grammars():
        """Compiled, refused and found; times taken, bytes kept, requests refused."""
        page = cluster.metrics()
        return [sum(value for key, value in page.items() if key.startswith(beginning)) for beginning in (
            'flotilla_scheduler_grammar_compilations_total{result="ok"',
            'flotilla_scheduler_grammar_compilations_total{result="invalid"',
            "flotilla_scheduler_grammar_cache_hits_total", "flotilla_scheduler_grammar_compile_seconds_count",
            "flotilla_scheduler_grammar_cache_bytes",
            f'flotilla_scheduler_rejections_total{{model="{cluster.model_id}",reason="invalid"')]

    before = grammars()
    for _ in range(2):
        cluster.complete(prompt="Yes?", max_tokens=5, structured_outputs={"choice": ["counted", "not counted"]})
    with pytest.raises(ClusterError, match="400"):
        cluster.complete(prompt="Yes?", max_tokens=5, structured_outputs={"regex": "counted(("})
    compiled, refused, found, timed, kept, rejected = [now - then for now, then in zip(grammars(), before)]
    assert (compiled, refused, found, timed, rejected) == (1, 1, 1, 2, 1)
    assert kept > 0


def test_a_killed_worker_changes_nothing():
    with Cluster("--kv-cache-memory", "256MiB", LONG_COMPILE, disturbed=True) as c:
        body = {"prompt": "List:", "max_tokens": 300, "temperature": 0.9, "seed": 5,
                "structured_outputs": {"json": {"type": "array", "minItems": 40, "maxItems": 40,
                                                "items": {"type": "integer", "minimum": 0, "maximum": 99}}}}
        undisturbed = c.complete(**body)["choices"][0]["text"]
        with ThreadPoolExecutor(1) as pool:
            generated = c.metric("flotilla_scheduler_generation_tokens_total")
            answer = pool.submit(c.complete, **body)
            wait_until(lambda: c.metric("flotilla_scheduler_generation_tokens_total") > generated + 20, 60,
                       "the stream is under way")
            os.kill(c.pids("worker-0")[0], signal.SIGKILL)
            assert answer.result()["choices"][0]["text"] == undisturbed
        assert len(json.loads(undisturbed)) == 40


def refusal(client, cluster, fields):
    """The error's field and text, and how long it took."""
    begin = time.monotonic()
    try:
        # Some are refused only where the text comes to what they can't tell apart: the same text each time.
        client.completions.create(model=cluster.model_id, prompt="Hello", max_tokens=200, seed=1, extra_body=fields)
    except openai.BadRequestError as error:
        return error.body["param"], error.body["message"], time.monotonic() - begin
    except openai.APIStatusError as error:
        return f"HTTP {error.status_code}", str(error), time.monotonic() - begin
    return None, "", time.monotonic() - begin


def test_hostile_grammars_are_refused_in_time_while_streams_go_on():
    assert len(LIST) >= 50
    with Cluster("--kv-cache-memory", "512MiB") as cluster:
        def stream(i):
            return cluster.complete(prompt=f"Story {i}:", max_tokens=200, temperature=0.7, seed=i, ignore_eos=True)

        before = [stream(i)["choices"][0]["text"] for i in range(4)]
        done = threading.Event()

        def stream_on(i):
            answers = [stream(i)]
            while not done.is_set():
                answers.append(stream(i))
            return {answer["choices"][0]["text"] for answer in answers}

        hostile_client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=60)
        # As many at a time as are compiled at once: more would be told to come again (429).
        with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(2) as hostile:
            streams = [pool.submit(stream_on, i) for i in range(4)]
            try:
                refusals = list(hostile.map(lambda entry: refusal(hostile_client, cluster, entry[1]), LIST))
            finally:
                done.set()
            assert [s.result() for s in streams] == [{text} for text in before]
        slowest = sorted(((seconds, name) for (name, _), (_, _, seconds) in zip(LIST, refusals)), reverse=True)
        print("slowest refusals:", *(f"{name} {seconds:.2f} s," for seconds, name in slowest[:5]))
        for (name, fields), (field, message, seconds) in zip(LIST, refusals):
            assert field is not None and field.split(".")[0] in fields, (name, field, message)
            limit = re.search(r"takes more than (\d+) ms", message)
            assert limit is None or int(limit[1]) <= MOST_COMPILE_MS, (name, message)
            assert seconds < MOST_SECONDS, (name, seconds)
        # Nothing was harmed: the next is compiled.
        answer = cluster.complete(prompt="Hello", max_tokens=10, structured_outputs={"choice": ["fine"]})
        assert answer["choices"][0]["text"] == "fine"
