"""A real Prometheus with the configuration, rules and dashboards of deploy/monitoring watches a cluster that runs."""

import os
import signal
import urllib.parse

import monitoring
import pytest
from cluster import Cluster, wait_until
from prometheus import Prometheus

# Alerts of a cluster that has just answered its first requests, on a machine that may be slow. So few requests, however
# slow, are no reason for those of the objectives.
MAY_CRY = {"FlotillaStuck"}


# Of what this cluster has not; test_tls.py has them.
ELSEWHERE = {"flotilla_router_certificate_expiry_timestamp_seconds",
             "flotilla_scheduler_certificate_expiry_timestamp_seconds"}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    with Cluster("--tp", "2", "--kv-cache-memory", "384MiB", disturbed=True) as cluster:
        target = urllib.parse.urlsplit(cluster.metrics_url).netloc
        prometheus = Prometheus([{"targets": [target]}], tmp_path_factory.mktemp("prometheus"))
        try:
            wait_until(lambda: prometheus.query("up == 1"), 60, "Prometheus has scraped the cluster")
            for _ in range(3):
                cluster.complete(prompt="Count: one, two, three,", max_tokens=8, ignore_eos=True)
            answered = 'flotilla_router_requests_total{route="/v1/completions"} == 3'
            wait_until(lambda: prometheus.query(f"count_over_time(({answered})[1m:1s]) > 3"), 60,
                       "Prometheus has seen the requests, and some scrapes more")
            yield cluster, prometheus
        finally:
            prometheus.stop()


def test_every_metric_of_rules_and_dashboards_is_there(watched):
    there = set(watched[1].get("label/__name__/values"))
    asked = {name: where for where, expression in monitoring.expressions()
             for name in monitoring.metrics_in(expression)}
    assert len(asked) > 60
    assert {name: where for name, where in asked.items() if name not in there | ELSEWHERE} == {}


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


def test_nothing_cries_without_a_reason_and_a_killed_worker_is_one(watched):
    cluster, prometheus = watched
    assert prometheus.firing() - MAY_CRY == set()
    os.kill(cluster.pids("worker")[0], signal.SIGKILL)
    wait_until(lambda: "FlotillaRestarts" in prometheus.firing(), 60, "the alert of a restart")
