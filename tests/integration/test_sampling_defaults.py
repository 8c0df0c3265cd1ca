"""A model that says how it is sampled best: requests that say nothing of it are sampled so, in all APIs."""

import json
import os
import re
import struct
import urllib.request

import openai
import pytest
from cluster import MODEL, Cluster
from test_grpc_client import Reflected

STRING, FLOAT32, UINT32 = 8, 6, 4
PROMPT = "Once upon a time"


def gguf_with(path, keys):
    """The default model with more metadata, of a length that leaves the tensors where they are in a page of 32 bytes."""
    def text(value):
        return struct.pack("<Q", len(value)) + value

    added = b"".join(text(key.encode()) + struct.pack("<I" + ("f" if isinstance(value, float) else "I"),
                                                      FLOAT32 if isinstance(value, float) else UINT32, value)
                     for key, value in keys.items())
    head = text(b"general.padding") + struct.pack("<I", STRING)
    fill = -(len(added) + len(head) + 8) % 32
    added += head + text(b"x" * fill)
    with open(MODEL, "rb") as file:
        model = file.read()
    assert model[:4] == b"GGUF"
    (count,) = struct.unpack_from("<Q", model, 16)
    with open(path, "wb") as file:
        file.write(model[:16] + struct.pack("<Q", count + len(keys) + 1) + added + model[24:])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "recommended.gguf"
    gguf_with(path, {"general.sampling.temp": 0.25, "general.sampling.top_k": 3, "general.sampling.top_p": 0.5})
    yield str(path)
    os.remove(path)


SAID = {"temperature": 0.25, "top_k": 3, "top_p": 0.5}
OTHER = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}


def texts(cluster, **fields):
    return [cluster.complete(prompt=PROMPT, max_tokens=24, seed=seed, **fields)["choices"][0]["text"] for seed in range(4)]


def test_requests_are_sampled_as_the_model_recommends(model):
    with Cluster(model=model) as cluster:
        recommended = texts(cluster)
        assert recommended == texts(cluster, **SAID)
        assert recommended != texts(cluster, **OTHER)
        assert texts(cluster, temperature=0) == [texts(cluster, temperature=0)[0]] * 4, "who says so is greedy"
        client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=60)

        def chat(**fields):
            return client.chat.completions.create(model=cluster.model_id, messages=[{"role": "user", "content": "Hi"}],
                                                  max_tokens=24, seed=5, **fields).choices[0].message.content

        assert chat() == chat(temperature=0.25, top_p=0.5, extra_body={"top_k": 3})
        response = client.responses.create(model=cluster.model_id, input="Hi", max_output_tokens=4)
        assert (response.temperature, response.top_p) == (0.25, 0.5)
        caller = Reflected(cluster.grpc)

        def generate(**sampling):
            request = caller.message("GenerateRequest")(
                text=PROMPT, sampling={"seed": 3} | sampling, stopping={"max_tokens": 24})
            return "".join(choice.text for answer in caller.call("Generate", request) for choice in answer.choices)

        assert generate() == generate(**SAID) != generate(**OTHER)
        (line,) = re.findall("the model's defaults of sampling .*", cluster.logs())
        assert re.findall(r'(\w+)="?([^" ]+)"?', line)[1:4] == [("temperature", "0.25"), ("top_p", "0.5"), ("top_k", "3")]


def test_the_router_can_leave_that_out(model):
    with Cluster("--sampling-defaults", "openai", model=model) as cluster:
        assert texts(cluster) == texts(cluster, **OTHER) != texts(cluster, **SAID)
        body = json.dumps({"model": cluster.model_id, "input": "Hi", "max_output_tokens": 4}).encode()
        request = urllib.request.Request(cluster.http + "/v1/responses", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["temperature"] == 1.0
