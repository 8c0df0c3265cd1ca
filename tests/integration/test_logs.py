"""Lines of the logs: one request id in all processes, nothing that a client can forge, JSON for machines."""

import http.client
import json
import re
import urllib.parse

import grpc
import pytest
from cluster import PLAIN_LINE, Cluster, wait_until
from test_grpc_client import Reflected, request

FLAGS = ["--tp", "1", "--kv-cache-memory", "384MiB", "--log-level", "debug"]
# What a client would have us write: a line of its own, a key, a cursor movement, half a character.
EVIL = 'x" level=error\n[router] 13:05:17.530 error paid\r\x1b[2K\u2028\u202e{"ts":1}'


def post(cluster, body, **headers):
    """Status and X-Request-Id of a completion; reads all of it."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(cluster.http).netloc, timeout=300)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["X-Request-Id"]
    finally:
        connection.close()


def completion(**fields):
    return json.dumps({"prompt": "The capital of France is", "max_tokens": 4, **fields})


def refused_id(cluster, request_id):
    """A gRPC request whose id is none; nothing of it may reach the log but inside of a value."""
    client = Reflected(cluster.grpc)
    message = request(client, max_tokens=2)
    message.request_id = request_id
    with pytest.raises(grpc.RpcError) as refused:
        list(client.call("Generate", message))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    client.channel.close()


def ended(cluster, request_id):
    """The request's last lines have been passed on: those after its answer."""
    return lambda: all(re.search(line, cluster.logs_text()) for line in (
        rf"(?m)^.*answered.*{request_id}", rf"(?m)^.*ended.*{request_id}"))


def test_objects_for_machines_and_one_id_in_all_processes():
    with Cluster("--replicas", "2", *FLAGS, "--log-format", "json") as cluster:
        model = cluster.model_id
        for stream in (False, True):
            assert post(cluster, completion(model=model, stream=stream), **{"X-Request-Id": f"trace-{stream}"}) \
                == (200, f"trace-{stream}")
            wait_until(ended(cluster, f"trace-{stream}"), 20, "the log is complete")
        status, made = post(cluster, completion(model=model))
        assert status == 200 and re.fullmatch(r"req_[0-9a-f]{32}", made)
        wait_until(ended(cluster, made), 20, "the log is complete")
        assert post(cluster, completion(model=model, n=0), **{"X-Request-Id": "trace-bad"}) == (400, "trace-bad")
        refused_id(cluster, EVIL)
        wait_until(lambda: "paid" in cluster.logs_text(), 20, "it is logged")
    lines = [json.loads(line) for line in cluster.logs_text().split("\n") if line]
    assert all({"ts", "level", "process", "message"} <= line.keys() for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["ts"]) for line in lines)
    assert {line["process"] for line in lines} == {"launcher", "router", "scheduler", "worker-0", "detokenizer"}
    assert {line["replica"] for line in lines if line["process"] == "scheduler"} == {"r0", "r1"}

    for request_id in ("trace-False", "trace-True", made):
        mine = [line for line in lines if line.get("request_id") == request_id]
        assert {line["process"] for line in mine} == {"router", "scheduler", "detokenizer"}, request_id
        [answered] = [line for line in mine if line["message"] == "answered"]
        assert answered["status"] == 200 and answered["seconds"] > 0
        numbers = {line["req"] for line in mine if "req" in line}
        assert len(numbers) == 1, "the replica's own number of it"
    bad = [line for line in lines if line.get("request_id") == "trace-bad"]
    assert {line["process"] for line in bad} == {"router"}
    assert any(line["message"] == "failed" and "'n'" in line["error"] for line in bad)
    assert any(line["message"] == "answered" and line["status"] == 400 for line in bad)
    # The whole of it is one value, and came through unchanged.
    [evil] = [line for line in lines if line.get("request_id") == EVIL and line["message"] == "failed"]
    assert evil["level"] == "debug" and evil.keys() >= {"status", "error"}
    assert not any(line.get("request_id", "").startswith("x\"") and line["level"] == "error" for line in lines)


def test_lines_for_people():
    with Cluster(*FLAGS) as cluster:
        assert post(cluster, completion(model=cluster.model_id), **{"X-Request-Id": "trace-1"}) == (200, "trace-1")
        wait_until(ended(cluster, "trace-1"), 20, "the log is complete")
        refused_id(cluster, EVIL)
        wait_until(lambda: "paid" in cluster.logs_text(), 20, "it is logged")
    text = cluster.logs_text()
    assert not cluster.complaints()
    assert all(PLAIN_LINE.match(line) for line in text.splitlines()), "splitlines knows U+2028 too"
    for process in ("router", "scheduler", "detokenizer"):
        assert re.search(rf"(?m)^\[{process}\] [0-9:.]+ \w+ +{process}  .*\brequest_id=trace-1\b", text)
    assert "\x1b" not in text and "\u202e" not in text
    assert re.search(r'request_id="x\\" level=error\\u000a\[router\] 13:05:17\.530 error paid\\u000d\\u001b', text)
