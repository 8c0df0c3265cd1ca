"""Traces of a real cluster, and docs/observability.md's way from a figure to a request's logs and spans."""

import json
import urllib.request

import pytest
from cluster import Cluster, wait_until
from otlp_collector import Collector

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STAGES = ["router", "queue", "prefill", "decode", "deliver"]


def request_of(collector, request_id):
    """The span of a request, and those of its stages by name, once they have come."""
    def find():
        for span in collector.spans():
            if attributes(span).get("flotilla.request_id") == request_id:
                return span
        return None
    whole = wait_until(find, 30, f"the span of {request_id}")
    return whole, {span["name"]: span for span in collector.spans() if span.get("parentSpanId") == whole["spanId"]}


def attributes(holder):
    return {a["key"]: a["value"].get("stringValue") or int(a["value"]["intValue"]) for a in holder["attributes"]}


def seconds(span):
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) * 1e-9


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    yield collector
    collector.server.shutdown()


@pytest.fixture(scope="module")
def cluster(collector):
    with Cluster("--otlp-traces-endpoint", collector.url, "--trace-sample-ratio", "0", "--log-level", "debug",
                 "--kv-cache-memory", "256MiB") as cluster:
        yield cluster


def complete(cluster, request_id, traceparent, **body):
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    if traceparent:
        headers["traceparent"] = traceparent
    body = {"model": cluster.model_id, "prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True, **body}
    request = urllib.request.Request(cluster.http + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.headers["X-Request-Id"] == request_id
        return json.load(response)


def test_stages_add_up_to_the_request(cluster, collector):
    answer = complete(cluster, "traced-1", f"00-{TRACE}-{PARENT}-01", return_timing=True)
    whole, stages = request_of(collector, "traced-1")
    assert (whole["traceId"], whole["parentSpanId"], whole["name"]) == (TRACE, PARENT, "flotilla.request")
    assert sorted(stages) == sorted(STAGES)
    at = whole["startTimeUnixNano"]
    for name in STAGES:
        assert stages[name]["traceId"] == TRACE
        assert stages[name]["startTimeUnixNano"] == at, f"{name} begins where the one before ends"
        at = stages[name]["endTimeUnixNano"]
    assert at == whole["endTimeUnixNano"]
    # The stages that the client was told, from the same stamps.
    timing = answer["timing"]
    assert seconds(stages["prefill"]) == pytest.approx(timing["prefill_seconds"], abs=1e-3)
    assert seconds(stages["decode"]) == pytest.approx(timing["decode_seconds"], abs=1e-3)
    assert seconds(stages["queue"]) == pytest.approx(timing["engine_seconds"] + timing["queue_seconds"], abs=1e-3)
    told = attributes(whole)
    assert told["gen_ai.usage.output_tokens"] == 12 and told["gen_ai.request.model"] == cluster.model_id
    assert told["flotilla.outcome"] == "length" and told["flotilla.replica"] == "r0"
    assert {attributes(each["resource"])["service.name"] for each in collector.resources()} == {"flotilla-router"}


def test_a_request_is_found_in_the_logs_of_every_process_that_knows_it(cluster, collector):
    """docs/observability.md, "One slow request"."""
    complete(cluster, "traced-2", f"00-{TRACE}-{PARENT}-01")
    request_of(collector, "traced-2")
    def processes():
        return {line.split("]")[0].lstrip("[") for line in cluster.logs_text().splitlines()
                if "request_id=traced-2" in line}
    wait_until(lambda: {"router", "scheduler"} <= {name.split("-")[0] for name in processes()}, 30,
               f"the request's log lines, of {processes()}")


def test_a_slow_request_is_followed_from_the_page_to_the_log_to_the_trace(collector):
    """The same: without debug's log, each with the same stages."""
    with Cluster("--otlp-traces-endpoint", collector.url, "--log-slow-ms=1", "--kv-cache-memory=256MiB") as cluster:
        complete(cluster, "slow-1", None)
        with urllib.request.urlopen(cluster.http + "/ui/fleet.json", timeout=30) as response:
            shown = next(each for each in json.load(response)["requests"] if each["request_id"] == "slow-1")
        _, stages = request_of(collector, "slow-1")
        lines = [line for line in cluster.logs_text().splitlines() if "request_id=slow-1" in line]
        assert len(lines) == 1 and "slow request" in lines[0], lines
        logged = dict(part.split("=", 1) for part in lines[0].split() if "=" in part)
        assert (logged["replica"], logged["outcome"], logged["completion_tokens"]) == ("r0", "length", "12")
        for stage in ("prefill", "decode"):
            told = shown["timing"][f"{stage}_seconds"]
            assert seconds(stages[stage]) == pytest.approx(told, abs=1e-3)
            assert int(logged[f"{stage}_ms"]) == pytest.approx(told * 1e3, abs=1)
        parts = sum(int(logged[f"{stage}_ms"]) for stage in ("router", "queue", "prefill", "decode"))
        assert int(logged["total_ms"]) == pytest.approx(parts, abs=3)


def test_a_stream_and_a_disconnect_are_traced(cluster, collector):
    headers = {"Content-Type": "application/json", "X-Request-Id": "traced-3",
               "traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"model": cluster.model_id, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(cluster.http + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        response.readline()
    whole, _ = request_of(collector, "traced-3")
    assert attributes(whole)["flotilla.outcome"] == "aborted"


def test_who_is_not_sampled_is_not_traced(cluster, collector):
    complete(cluster, "not-1", None)
    complete(cluster, "not-2", f"00-{TRACE}-{PARENT}-00")
    complete(cluster, "not-3", "nonsense")
    complete(cluster, "traced-4", f"00-{TRACE}-{PARENT}-01")
    request_of(collector, "traced-4")  # it came later than the others would have
    assert not [s for s in collector.spans() if attributes(s).get("flotilla.request_id", "").startswith("not-")]


def test_a_bad_endpoint_is_named():
    with pytest.raises(Exception, match="otlp-traces-endpoint"):
        Cluster("--otlp-traces-endpoint", "https://collector:4318")
