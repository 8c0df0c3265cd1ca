"""What deploy/monitoring asks of Prometheus: its expressions, and the metrics and labels in them."""

import json
import pathlib
import re

import yaml

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
METRIC = re.compile(r"\b(?:flotilla[_:][\w:]+|process_\w+)")
# `by (a, b) (rate(metric{…` or `by (a) (metric{…`
GROUPED = re.compile(r"by \(([^)]*)\) \((?:rate\(|increase\()?(flotilla_\w+|process_\w+)")


def rules():
    """All rules, as their files have them."""
    return [rule for path in sorted(MONITORING.glob("rules/*.yaml"))
            for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded():
    return {rule["record"] for rule in rules() if "record" in rule}


def dashboards():
    return {path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(MONITORING.glob("dashboards/*.json"))}


def panel_expressions():
    """(dashboard: panel, expression) with Grafana's variables filled in as it would."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
                assert "$" not in expression, expression
                yield f'{name}: {panel["title"]}', expression


def expressions():
    """(where, expression) of all dashboards and rules."""
    yield from panel_expressions()
    for rule in rules():
        yield rule.get("alert", rule.get("record")), rule["expr"]


def metrics_in(expression):
    return set(METRIC.findall(expression)) - {"process"}


def family(name):
    """The name that HELP and TYPE have."""
    return re.sub(r"_(bucket|sum|count)$", "", name)
