"""Two tenants on a real cluster: nobody without a key, and nothing of one tenant's is to be had with the other's key."""

import hashlib
import http.client
import json
import threading
from urllib.parse import urlsplit

import grpc
import openai
import pytest
from cluster import Cluster
from test_grpc_client import Reflected, request
from test_idempotency import BEGUN, FINISHED, count

# 12 pages of 16 tokens and a rest.
PROMPT = [2000 + 7 * i for i in range(200)]
KEYS = {"acme": "sk-acme", "umbrella": "sk-umbrella"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    keys = tmp_path_factory.mktemp("tenants") / "keys"
    keys.write_text("".join(f"{tenant} {hashlib.sha256(key.encode()).hexdigest()}\n" for tenant, key in KEYS.items()),
                    encoding="utf-8")
    with Cluster("--tp", "1", "--threads", "2", "--api-keys-file", str(keys)) as running:
        yield running


def client_of(cluster, key):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def acme(cluster):
    return client_of(cluster, KEYS["acme"])


@pytest.fixture(scope="module")
def umbrella(cluster):
    return client_of(cluster, KEYS["umbrella"])


@pytest.fixture(scope="module")
def model(acme):
    return acme.models.list().data[0].id


def cached(client, model, prompt):
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=1, temperature=0)
    return answer.usage.prompt_tokens_details.cached_tokens


def authorized(tenant):
    return {"metadata": [("authorization", f"Bearer {KEYS[tenant]}")]}


@pytest.fixture(scope="module")
def reflected(cluster, pair):
    return Reflected(cluster.grpc, like=Reflected(pair.grpc))  # one with keys tells nobody its services


def test_nobody_without_a_right_key(cluster, model, reflected):
    before = cluster.metric("flotilla_scheduler_prompt_tokens_total")
    for key in ("sk-wrong", KEYS["acme"][:-1], KEYS["acme"] + "x", hashlib.sha256(KEYS["acme"].encode()).hexdigest()):
        stranger = client_of(cluster, key)
        for ask in (lambda: stranger.completions.create(model=model, prompt="Hi", max_tokens=1),
                    lambda: stranger.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}]),
                    lambda: stranger.embeddings.create(model=model, input="Hi"),
                    lambda: stranger.responses.create(model=model, input="Hi"),
                    stranger.models.list):
            with pytest.raises(openai.AuthenticationError):
                ask()
    for path in ("/v1/completions", "/v1/messages", "/tokenize", "/detokenize", "/apply-template"):
        connection = http.client.HTTPConnection(urlsplit(cluster.http).netloc, timeout=60)
        connection.request("POST", path, "{}", {"Content-Type": "application/json"})
        assert connection.getresponse().status == 401, path
    for options in ({}, {"metadata": [("authorization", "Bearer sk-wrong")]}):
        with pytest.raises(grpc.RpcError) as refused:
            list(reflected.call("Generate", request(reflected), **options))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert cluster.metric("flotilla_scheduler_prompt_tokens_total") == before, "none of them reached the scheduler"


def test_the_cache_tells_a_tenant_nothing_of_the_others(acme, umbrella, model):
    assert cached(acme, model, PROMPT) == 0
    assert cached(acme, model, PROMPT) == 192
    # What tells by the time that it takes is what was computed: all of it, as if nobody had asked before.
    assert cached(umbrella, model, PROMPT) == 0
    assert cached(umbrella, model, PROMPT) == 192
    # Nor does asking for the beginning of another's prompt, which a guess would try word by word.
    secret = [3000 + 11 * i for i in range(160)]
    assert cached(acme, model, secret) == 0
    for tokens in (32, 96, 160):
        assert cached(umbrella, model, secret[:tokens] + [5]) <= max(0, tokens - 64), "only what it has sent itself"


def test_a_key_of_idempotency_is_its_tenants(cluster, model):
    def ask(tenant, prompt):
        connection = http.client.HTTPConnection(urlsplit(cluster.http).netloc, timeout=60)
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0.9}
        connection.request("POST", "/v1/completions", json.dumps(body), {
            "Content-Type": "application/json", "Idempotency-Key": "order-17", "Authorization": f"Bearer {KEYS[tenant]}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    first_status, first = ask("acme", "A secret of acme is")
    again_status, again = ask("acme", "A secret of acme is")
    assert (first_status, again_status) == (200, 200)
    assert again["choices"] == first["choices"], "the finished one"
    assert (count(cluster, BEGUN), count(cluster, FINISHED)) == (1, 1)
    # The other tenant's request of this key is a request of its own, with the same body and with another.
    assert ask("umbrella", "A secret of acme is")[0] == 200
    assert (count(cluster, BEGUN), count(cluster, FINISHED)) == (2, 1), "it was computed"
    assert ask("acme", "Something else")[0] == 422, "acme's own key, another body"


def test_another_tenants_request_can_not_be_cancelled(reflected):
    abort = reflected.message("AbortRequest")(request_id="job-of-acme")
    finished, begun = [], threading.Event()

    def generate():
        message = request(reflected, max_tokens=300)
        message.request_id = "job-of-acme"
        message.stopping.ignore_eos = True
        tokens = 0
        for piece in reflected.call("Generate", message, **authorized("acme")):
            begun.set()
            tokens += sum(len(choice.token_ids) for choice in piece.choices)
        finished.append(tokens)

    thread = threading.Thread(target=generate)
    thread.start()
    assert begun.wait(60)
    with pytest.raises(grpc.RpcError) as refused:
        reflected.call("Abort", abort)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not reflected.call("Abort", abort, **authorized("umbrella")).found
    thread.join(120)
    assert finished == [300], "it went on to its end"


def test_who_asked_for_how_much(cluster, acme, model):
    def figures(tenant):
        samples = cluster.metrics()
        return {name: sum(value for key, value in samples.items()
                          if key.startswith(f"flotilla_router_tenant_{name}{{") and f'tenant="{tenant}"' in key)
                for name in ("requests_total", "tokens_total")}

    before = {tenant: figures(tenant) for tenant in KEYS}
    answer = acme.completions.create(model=model, prompt="One, two,", max_tokens=5, temperature=0)
    after = {tenant: figures(tenant) for tenant in KEYS}
    assert after["acme"]["requests_total"] == before["acme"]["requests_total"] + 1
    grown = after["acme"]["tokens_total"] - before["acme"]["tokens_total"]
    assert 5 <= grown <= answer.usage.total_tokens  # the last one is not computed
    assert after["umbrella"] == before["umbrella"]
