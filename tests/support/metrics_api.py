"""The metrics API of a Kubernetes API server as prometheus-adapter serves it, the autoscaler that asks it, and KEDA.

MetricsApi answers custom.metrics.k8s.io from a Prometheus by one rule of deploy/components/prometheus-adapter/config.yaml,
with the rule's templates filled in as the adapter documents them. Autoscaler reads a HorizontalPodAutoscaler and decides
as the documented algorithm does: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
"""

import json
import math
import re
import urllib.request

from json_server import JsonServer, failure

GROUP = "/apis/custom.metrics.k8s.io/v1beta2"
PATH = re.compile(re.escape(GROUP) + r"/namespaces/([^/]+)/pods/\*/([^/]+)")
TOLERANCE = 0.1  # below which nothing is changed


class MetricsApi(JsonServer):
    """`pods`: those of the scale target, which the real one finds by its selector."""

    def __init__(self, prometheus, rule, pods):
        super().__init__(self.answer)
        self.prometheus, self.rule, self.pods = prometheus, rule, pods

    def label(self, resource):
        """Of the series, that has the resource's name."""
        return next(label for label, override in self.rule["resources"]["overrides"].items()
                    if override["resource"] == resource)

    def answer(self, path):
        match = PATH.fullmatch(path)
        # A rule without a `name` takes the series' own; those that it has are found by seriesQuery.
        series = self.rule["seriesQuery"]
        if match is None or match[2] != series.split("{")[0] or not self.prometheus.query(series):
            return failure(404, "NotFound")
        namespace, metric = match.groups()
        pod = self.label("pod")
        matchers = f'{self.label("namespace")}="{namespace}",{pod}=~"{"|".join(self.pods)}"'
        query = (self.rule["metricsQuery"].replace("<<.Series>>", metric).replace("<<.LabelMatchers>>", matchers)
                 .replace("<<.GroupBy>>", pod))
        items = [{"describedObject": {"kind": "Pod", "namespace": namespace, "name": found["metric"][pod]},
                  "metric": {"name": metric}, "value": found["value"][1]} for found in self.prometheus.query(query)]
        return 200, {"kind": "MetricValueList", "apiVersion": GROUP.removeprefix("/apis/"), "items": items}


class Autoscaler:
    def __init__(self, manifest, api_url):
        self.spec, self.url = manifest["spec"], api_url
        self.namespace = manifest["metadata"]["namespace"]

    def values(self):
        """pod → the metric's value."""
        [metric] = self.spec["metrics"]
        assert metric["type"] == "Pods" and metric["pods"]["target"]["type"] == "AverageValue"
        url = f'{self.url}{GROUP}/namespaces/{self.namespace}/pods/*/{metric["pods"]["metric"]["name"]}'
        with urllib.request.urlopen(url, timeout=10) as response:
            return {item["describedObject"]["name"]: float(item["value"]) for item in json.load(response)["items"]}

    def desired(self, replicas):
        """How many replicas it wants while there are `replicas`."""
        target = float(self.spec["metrics"][0]["pods"]["target"]["averageValue"])
        ratio = sum(self.values().values()) / (target * replicas)
        wanted = replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * replicas)
        return min(max(wanted, self.spec["minReplicas"]), self.spec["maxReplicas"])


class Keda:
    """A ScaledObject's one trigger, asked of a Prometheus as KEDA's scaler asks: https://keda.sh/docs/scalers/prometheus/"""

    def __init__(self, manifest, prometheus):
        [trigger] = manifest["spec"]["triggers"]
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
        self.spec, self.trigger, self.prometheus = manifest["spec"], trigger["metadata"], prometheus

    def value(self):
        """Of the query, which must have one; KEDA takes none for 0 unless it is told otherwise, and so hides a mistake."""
        [found] = self.prometheus.query(self.trigger["query"])
        return float(found["value"][1])

    def desired(self):
        """By the autoscaler that KEDA makes: an average over all replicas is the whole over the target."""
        wanted = math.ceil(self.value() / float(self.trigger["threshold"]))
        return min(max(wanted, self.spec["minReplicaCount"]), self.spec["maxReplicaCount"])
