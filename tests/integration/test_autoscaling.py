"""The autoscalers' way to their metric: two engines, a real Prometheus, the adapter's rule, the shipped HPA, and KEDA's
trigger, which asks Prometheus itself.

The metrics API is a stub that fills in the rule's templates (tests/support/metrics_api.py); everything else is real.
"""

import http.client
import json
import pathlib
import urllib.error
import urllib.parse

import pytest
import yaml
from cluster import Cluster, wait_until
from metrics_api import Autoscaler, Keda, MetricsApi
from prometheus import Prometheus
from router import Router

COMPONENTS = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "components"
PODS = ["engine-0", "engine-1"]
WAIT_S = 120


def waiting(engine):
    return engine.metric("flotilla_scheduler_requests_waiting")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    hpa = yaml.safe_load((COMPONENTS / "hpa/hpa.yaml").read_text())
    [rule] = yaml.safe_load((COMPONENTS / "prometheus-adapter/config.yaml").read_text())["rules"]
    flags = ["--kv-cache-memory", "128MiB", "--context-length", "2048", "--max-running-requests", "1"]
    with Cluster(*flags, command="engine") as first, Cluster(*flags, command="engine") as second:
        engines = [first, second]
        with Router([engine.grpc for engine in engines]) as router:
            # The labels are those that a PodMonitor gives.
            targets = [{"targets": [urllib.parse.urlsplit(engine.metrics_url).netloc],
                        "labels": {"namespace": hpa["metadata"]["namespace"], "pod": pod}}
                       for engine, pod in zip(engines, PODS)]
            prometheus = Prometheus(targets, tmp_path_factory.mktemp("prometheus"))
            try:
                with MetricsApi(prometheus, rule, PODS) as url:
                    wait_until(lambda: len(prometheus.query("up == 1") or []) == 2, 60, "both are scraped")
                    scaled_object = yaml.safe_load((COMPONENTS / "keda/scaledobject.yaml").read_text())
                    yield Autoscaler(hpa, url), Keda(scaled_object, prometheus), engines, router
            finally:
                prometheus.stop()


def test_a_queue_makes_replicas_and_its_end_takes_them_away(scaled):
    autoscaler, keda, engines, router = scaled
    wait_until(lambda: autoscaler.values() == {"engine-0": 0, "engine-1": 0}, WAIT_S, "the pods' values")
    assert autoscaler.desired(2) == 2
    assert (keda.value(), keda.desired()) == (0, 2)

    connections = []
    for i in range(24):  # one runs at each, the others wait
        connection = http.client.HTTPConnection("127.0.0.1", router.http, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": "SmolLM2-135M-Instruct", "prompt": f"Story {i}:", "max_tokens": 1900, "ignore_eos": True,
             "stream": True}), {"Content-Type": "application/json"})
        connections.append(connection)
    wait_until(lambda: sum(map(waiting, engines)) == 22, WAIT_S, "all but two wait")
    wait_until(lambda: sum(autoscaler.values().values()) == 22, WAIT_S, "the autoscaler sees them")
    assert autoscaler.values() == {pod: waiting(engine) for pod, engine in zip(PODS, engines)}
    assert autoscaler.desired(2) == 4  # 22 / 5, and no more than maxReplicas
    assert (keda.value(), keda.desired()) == (sum(autoscaler.values().values()), 4), "KEDA sees another queue"

    for connection in connections:  # they are aborted
        connection.close()
    wait_until(lambda: autoscaler.values() == {"engine-0": 0, "engine-1": 0}, WAIT_S, "nothing waits")
    assert autoscaler.desired(4) == 2
    assert (keda.value(), keda.desired()) == (0, 2)


def test_both_scale_alike(scaled):
    autoscaler, keda, _, _ = scaled
    assert float(keda.trigger["threshold"]) == float(autoscaler.spec["metrics"][0]["pods"]["target"]["averageValue"])
    assert (keda.spec["minReplicaCount"], keda.spec["maxReplicaCount"]) == (autoscaler.spec["minReplicas"],
                                                                            autoscaler.spec["maxReplicas"])
    assert keda.spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == autoscaler.spec["behavior"]


def test_a_query_of_another_namespace_is_seen(scaled, monkeypatch):
    keda = scaled[1]
    monkeypatch.setitem(keda.trigger, "query", keda.trigger["query"].replace("flotilla\"", "other\""))
    with pytest.raises(ValueError):
        keda.value()


def test_another_metric_is_not_there(scaled, monkeypatch):
    autoscaler = scaled[0]
    monkeypatch.setitem(autoscaler.spec["metrics"][0]["pods"]["metric"], "name", "flotilla_scheduler_requests_running")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        autoscaler.values()
