"""Rules and dashboards of deploy/monitoring, without a cluster: promtool takes them, each alert comes when it
should (rules_test/), is explained in the runbook, and nothing asks for a metric or label that is not documented.
tests/integration/test_observability.py holds the same to a cluster that runs.

Run from the repository's root: .cache/venv/bin/python tests/deploy/monitoring_test.py
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import monitoring  # noqa: E402

MONITORING = monitoring.MONITORING
TARGET_LABELS = {"instance", "job", "le", "namespace"}
# A look at requests, and whether it wants clients' (!~) or all others (=~).
REQUESTS = re.compile(r"flotilla_router_requests_total(?:\{([^}]*)\})?")
NO_CLIENTS = re.compile(r'route(!~|=~)"([^"]*)"')
# What makes one sample of many, and no "by (namespace" behind it; or takes the namespace away.
MIXED = re.compile(r"(?<!:)\b(?:sum|avg|min|max|count|quantile|topk|bottomk)\b(?! by \(namespace[,)])"
                   r"|\b(?:scalar|vector)\(")


def promtool(*args):
    return subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=300)


def generate(*args):
    return subprocess.run([sys.executable, MONITORING / "generate.py", *args], capture_output=True, text=True, timeout=60)


def check_expressions(expressions):
    """promtool's verdict over (where, expression) pairs."""
    rules = [{"record": f"check:{number}", "expr": expression} for number, (_, expression) in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "check", "rules": rules}]}, file)
        file.flush()
        return promtool("check", "rules", file.name)


def documented():
    """Metric → labels, of docs/metrics.md."""
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \| ([\w, ]*) \|",
                      (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) > 50
    return {name: {label.strip() for label in labels.split(",")} - {""} for name, labels in rows}


class MonitoringTest(unittest.TestCase):

    def passes(self, run):
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_prometheus_takes_the_configuration(self):
        self.passes(promtool("check", "config", MONITORING / "prometheus.yml"))

    def test_each_alert_comes_when_it_should(self):
        self.passes(promtool("test", "rules", *sorted(MONITORING.glob("rules_test/*.yaml"))))

    def test_each_alert_is_tested_both_ways(self):
        comes, stays_away = set(), set()
        for path in MONITORING.glob("rules_test/*.yaml"):
            for test in yaml.safe_load(path.read_text())["tests"]:
                for case in test.get("alert_rule_test", []):
                    (comes if case.get("exp_alerts") else stays_away).add(case["alertname"])
        self.assertEqual(comes, set(monitoring.alerts()))
        self.assertEqual(stays_away, set(monitoring.alerts()))

    def test_each_alert_says_what_to_do(self):
        sections = set(re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), re.M))
        self.assertEqual(sections, set(monitoring.alerts()))
        for name, rule in monitoring.alerts().items():
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"), name)
            self.assertEqual(rule["annotations"]["runbook"], f"docs/runbook.md#{name.lower()}")

    def test_runbook_becomes_a_link(self):
        base = "https://git.example.com/flotilla/blob/main"
        with tempfile.TemporaryDirectory() as folder:
            for given in (base, base + "/"):
                self.passes(generate("--output", folder, "--runbook-base", given))
                made = sorted(pathlib.Path(folder).rglob("*.yaml"))
                self.assertEqual([path.name for path in made], ["prometheusrule.yaml", "health.yaml", "slo.yaml"])
                self.passes(promtool("check", "rules", *made[1:]))
                operators, *files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in made]
                self.assertEqual(operators["spec"]["groups"], [group for file in files for group in file["groups"]])
                rules = [rule for group in operators["spec"]["groups"] for rule in group["rules"]]
                for rule in rules:
                    if "alert" in rule:
                        link = rule["annotations"].pop("runbook_url")
                        self.assertEqual(link, f'{base}/docs/runbook.md#{rule["alert"].lower()}')
                self.assertEqual(rules, monitoring.rules())  # nothing else is different
        for wrong in (["--output", "/nowhere"], ["--check", "--runbook-base", base]):
            self.assertEqual(generate(*wrong).returncode, 2, wrong)

    def test_severities_become_critical_and_warning_as_documented(self):
        text = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
        fence, = re.findall(r"^```yaml\n(prometheus:\n.*?)^```$", text, re.M | re.S)
        relabel = yaml.safe_load(fence)["prometheus"]["prometheusSpec"]["additionalAlertRelabelConfigs"]
        became = {each["regex"]: each["replacement"] for each in relabel}
        self.assertEqual(became, {"page": "critical", "ticket": "warning"})
        self.assertEqual(set(became), {rule["labels"]["severity"] for rule in monitoring.alerts().values()})
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"alerting": {"alert_relabel_configs": relabel}}, file)
            file.flush()
            self.passes(promtool("check", "config", file.name))

    def test_fleets_of_other_namespaces_are_not_added_up(self):
        for rule in monitoring.rules():
            self.assertIsNone(MIXED.search(rule["expr"]), rule)
        for mixed in ("avg(up)", "sum by (model) (up)", "up or vector(0)", "up > scalar(up)", "sum by (namespaces) (up)"):
            self.assertIsNotNone(MIXED.search(mixed), mixed)

    def routes_of_requests(self, expressions):
        """Where an expression tells clients' requests from probes → how: "!~" or "=~", the routes; None: not at all."""
        return [(where, (match[1], match[2]) if match else None) for where, expression in expressions
                for matchers in REQUESTS.findall(expression) for match in [NO_CLIENTS.search(matchers)]]

    def test_probes_are_no_clients_requests(self):
        asked = self.routes_of_requests(monitoring.expressions())
        self.assertGreater(len(asked), 9)
        self.assertEqual({where for where, route in asked if route is None}, set())
        self.assertEqual({where for where, route in asked if route[0] == "=~"}, {"fleet.json: Probes and the like"})
        self.assertEqual(len({route[1] for _, route in asked}), 1, asked)
        excluded = re.compile(asked[0][1][1])
        paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text(encoding="utf-8"))["paths"]
        self.assertEqual({path for path in paths if excluded.fullmatch(path)},
                         {"/health", "/health/live", "/health/ready", "/ping", "/version", "/ui/fleet.json", "/ui/{file}"})
        self.assertTrue(excluded.fullmatch("other"))
        self.assertFalse(excluded.fullmatch("flotilla.v1.Inference/Generate"))
        for blind in ("rate(flotilla_router_requests_total[5m])", 'flotilla_router_requests_total{code="503"}'):
            self.assertEqual(self.routes_of_requests([("here", blind)]), [("here", None)])

    def test_http_and_grpc_count_the_same_errors(self):
        codes, = {re.search(r'code=~"([^"]*)"', rule["expr"])[1] for rule in monitoring.rules() if "code=~" in rule["expr"]}
        # INTERNAL and what becomes of it, UNAVAILABLE; but DEADLINE_EXCEEDED, and what bytes that are no request get.
        for code, counts in (("500", True), ("13", True), ("503", True), ("14", True), ("504", False), ("4", False),
                             ("505", False), ("200", False), ("0", False), ("499", False), ("1", False), ("429", False),
                             ("8", False)):
            self.assertEqual(bool(re.fullmatch(codes, code)), counts, code)

    def test_every_expression_parses(self):
        expressions = list(monitoring.expressions())
        self.assertGreater(len(expressions), 80)
        self.passes(check_expressions(expressions))
        self.assertNotEqual(check_expressions([("", "sum(rate(up))")]).returncode, 0)

    def test_every_metric_is_documented(self):
        known = set(documented()) | monitoring.recorded()
        for where, expression in monitoring.expressions():
            for name in monitoring.metrics_in(expression):
                self.assertIn(name if name in known else monitoring.family(name), known, where)

    def test_every_label_is_the_metrics(self):
        labels = documented()
        seen = 0
        for where, expression in monitoring.expressions():
            for names, metric in monitoring.GROUPED.findall(expression):
                known = labels[metric if metric in labels else monitoring.family(metric)] | TARGET_LABELS
                self.assertLessEqual({name.strip() for name in names.split(",")}, known, where)
                seen += 1
        self.assertGreater(seen, 30)

    def test_what_is_generated_is_up_to_date(self):
        self.passes(generate("--check"))

    def test_dashboards_can_be_told_apart(self):
        boards = monitoring.dashboards()
        self.assertEqual(set(boards), {"cost.json", "fleet.json", "latency.json", "replica.json", "worker.json"})
        self.assertEqual(len({board["uid"] for board in boards.values()}), len(boards))
        for name, board in boards.items():
            titles = [panel["title"] for panel in board["panels"]]
            self.assertEqual(len(titles), len(set(titles)), name)


if __name__ == "__main__":
    unittest.main()
