"""A real Prometheus with the configuration, rules and dashboards of deploy/monitoring watches clusters that run, one of
them with TLS, while clients keep the other one busy. vLLM's own dashboard has its answers there, too."""

import math
import os
import pathlib
import re
import signal
import threading
import urllib.parse

import monitoring
import pytest
import vllm_dashboard
import yaml
from cluster import Cluster, wait_until
from prometheus import Prometheus
from test_tls import Authority, Secret, start_router

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/observability.md"
CLIENTS = 6
# Alerts of time, on a machine that may be slow.
MAY_CRY = {"FlotillaStuck", "FlotillaFirstTokensLate", "FlotillaFirstTokensLateForDays", "FlotillaTokensSlow",
           "FlotillaTokensSlowForDays"}


class Load:
    """Clients that ask one request after the other, until the end of the block: then each must have been answered."""

    def __init__(self, cluster):
        self.cluster, self.answers, self.errors = cluster, 0, []
        self.over, self.lock = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(CLIENTS)]

    def ask(self, number):
        while not self.over.is_set():
            try:
                answer = self.cluster.complete(prompt=f"Count with client {number}: one, two, three,", max_tokens=8 + number,
                                               ignore_eos=True)
                assert answer["usage"]["completion_tokens"] == 8 + number
            except Exception as error:  # pylint: disable=broad-except - whatever it is, it is an answer that did not come
                self.errors.append(error)
                return
            with self.lock:
                self.answers += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def jobs_of_the_page():
    """The scrape jobs that docs/observability.md shows."""
    [fence] = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return yaml.safe_load(fence)["scrape_configs"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """The addresses of metrics of an engine and a router with certificates on both sides."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ca")
    secrets = [Secret(folder / name, authority) for name in ("engine", "router")]
    flags = ["--tp", "1", "--kv-cache-memory", "256MiB", *secrets[0].flags("tls", "client-ca-file")]
    with Cluster(*flags, command="engine") as engine:
        router = start_router(secrets[1], engine, folder)
        try:
            yield [urllib.parse.urlsplit(url).netloc for url in (engine.metrics_url, router.metrics_url)]
        finally:
            assert router.stop() == 0


@pytest.fixture(scope="module")
def watched(secure, tmp_path_factory):
    with Cluster("--tp", "2", "--kv-cache-memory", "384MiB", disturbed=True) as cluster:
        target = urllib.parse.urlsplit(cluster.metrics_url).netloc
        cluster.call("GET", "/health/ready")  # as a kubelet does: a panel has nothing but probes
        # A page has five seconds: it takes milliseconds, and the default is ten.
        prometheus = Prometheus([{"targets": [target, *secure]}], tmp_path_factory.mktemp("prometheus"), scrape_s=5,
                                jobs=jobs_of_the_page())
        try:
            with Load(cluster) as load:
                answered = 'flotilla_router_requests_total{route="/v1/completions"} > 20'
                wait_until(lambda: prometheus.query(f"count_over_time(({answered})[1m:5s]) > 3"), 120,
                           "Prometheus has seen the requests, and some scrapes more")
                yield cluster, prometheus, load
            assert not load.errors, load.errors
            assert load.answers > 20
        finally:
            prometheus.stop()


def test_every_metric_of_rules_and_dashboards_is_there(watched):
    there = set(watched[1].get("label/__name__/values"))
    asked = {name: where for where, expression in monitoring.expressions()
             for name in monitoring.metrics_in(expression)}
    assert len(asked) > 60
    assert {name: where for name, where in asked.items() if name not in there} == {}
    # Of the cluster with TLS alone.
    assert {"flotilla_router_certificate_expiry_timestamp_seconds",
            "flotilla_scheduler_certificate_expiry_timestamp_seconds"} <= asked.keys()


def test_every_rule_is_evaluated(watched):
    groups = wait_until(lambda: (found := watched[1].get("rules")["groups"]) and all(
        rule["health"] != "unknown" for group in found for rule in group["rules"]) and found, 60, "all are evaluated")
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(monitoring.rules())
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_every_panel_has_data(watched):
    for where, expression in monitoring.panel_expressions():  # a scrape that came too late leaves a gap
        wait_until(lambda: watched[1].query(expression), 60, f"data of {where}")


def test_the_budgets_buckets_are_there(watched):
    for metric, le in (("flotilla_router_ttft_seconds_bucket", "2.5"),
                       ("flotilla_scheduler_inter_token_latency_seconds_bucket", "0.2")):
        assert watched[1].query(f'{metric}{{le="{le}"}}')
        assert any(f'{metric}{{le="{le}"}}' in rule["expr"] for rule in monitoring.rules())


def test_vllms_dashboard_has_its_answers(watched):
    """Of each query a number, while requests run; the engine with TLS has none and is left out."""
    cluster, prometheus, _ = watched
    busy = urllib.parse.urlsplit(cluster.metrics_url).netloc

    def numbers(query):
        return [float(sample["value"][1]) for sample in prometheus.query(query) or []
                if sample["metric"].get("instance", busy) == busy]

    [model] = prometheus.get("label/model_name/values")
    asked = list(vllm_dashboard.queries(model))
    assert len(asked) > 30
    for panel, query in asked:
        found = wait_until(lambda: numbers(query), 60, f"an answer for {panel}: {query}")
        assert not any(map(math.isnan, found)), (panel, query, found)
    assert any(sample["metric"] == {"finished_reason": "length"} and float(sample["value"][1]) > 0
               for sample in prometheus.query(vllm_dashboard.finished(model)))


def test_nothing_cries_without_a_reason_and_a_killed_worker_is_one(watched):
    cluster, prometheus, load = watched
    assert prometheus.firing() - MAY_CRY == set()
    answers = load.answers
    os.kill(cluster.pids("worker")[0], signal.SIGKILL)
    wait_until(lambda: "FlotillaRestarts" in prometheus.firing(), 120, "the alert of a restart")
    wait_until(lambda: load.answers > answers + CLIENTS, 120, "the clients are answered again")


def test_every_scrape_came_under_this_load(watched):
    _, prometheus, load = watched
    assert not load.errors and all(thread.is_alive() for thread in load.threads)
    targets = prometheus.query("count_over_time(up[1h]) >= 3")
    assert len(targets) == 6, "two jobs, three pages"
    assert prometheus.query("min_over_time(up[1h]) == 0") == []
