"""Rules of scaling, and of who may call whom (policies.py)."""

from manifest_objects import matches, name_of, of_kind, watches_services

DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
WAITING_METRIC = "flotilla_scheduler_requests_waiting"


def scaling_follows_the_queue(objects):
    for item in of_kind(objects, "HorizontalPodAutoscaler"):
        for metric in item["spec"]["metrics"]:
            pods_metric = metric.get("pods", {})
            if (pods_metric.get("metric", {}).get("name"), pods_metric.get("target")) != (
                    WAITING_METRIC, {"type": "AverageValue", "averageValue": "5"}):
                yield f"{name_of(item)} does not follow an average of 5 of {WAITING_METRIC}"
    for item in of_kind(objects, "ScaledObject"):
        for trigger in item["spec"]["triggers"]:
            if WAITING_METRIC not in trigger["metadata"]["query"] or trigger["metadata"]["threshold"] != "5":
                yield f"{name_of(item)} does not follow an average of 5 of {WAITING_METRIC}"


def scaling_down_takes_its_time(objects):
    for item in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        spec = item["spec"]
        hpa = spec if item["kind"] != "ScaledObject" else spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        down = hpa.get("behavior", {}).get("scaleDown", {})
        if down.get("stabilizationWindowSeconds", 0) < 600 or not down.get("policies"):
            yield f"{name_of(item)} takes engines and their caches away as soon as a queue is short"
        if spec.get("minReplicaCount") and "cooldownPeriod" in spec:
            yield f"{name_of(item)}: cooldownPeriod is for scaling to 0 only"


def nobody_fixes_the_size_of_what_is_scaled(objects):
    scaled = {item["spec"]["scaleTargetRef"]["name"]
              for item in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")}
    for item in of_kind(objects, "StatefulSet"):
        if item["metadata"]["name"] in scaled and "replicas" in item["spec"]:
            yield f"{name_of(item)} has replicas, which every apply would set again"


def autoscalers_have_their_target(objects):
    sets = {item["metadata"]["name"] for item in of_kind(objects, "StatefulSet")}
    for item in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        if item["spec"]["scaleTargetRef"]["name"] not in sets:
            yield f"{name_of(item)} scales what is not there"


def the_network_denies_by_default(objects):
    policies = [item["spec"] for item in of_kind(objects, "NetworkPolicy")]
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    if deny not in policies:
        yield "no NetworkPolicy denies all ingress and egress"


def only_routers_reach_engines(objects):
    router = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "router"}}}
    for item in of_kind(objects, "NetworkPolicy"):
        selector = item["spec"]["podSelector"].get("matchLabels", {})
        if selector.get("app.kubernetes.io/name") != "engine":
            continue
        for rule in item["spec"].get("ingress", []):
            ports = {port["port"] for port in rule.get("ports", [])}
            if (ports != {"metrics"} or not rule.get("from")) and rule.get("from") != [router]:
                yield f"{name_of(item)}: others than routers reach {sorted(map(str, ports)) or 'all ports'}"
        if item["spec"].get("egress"):
            yield f"{name_of(item)}: an engine calls nobody"


def routers_may_ask_for_names(objects):
    """--replica-dns needs DNS by UDP, and by TCP where the answer is too long for a packet."""
    for item in of_kind(objects, "Deployment"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        open_to_dns = {(port["port"], port.get("protocol", "TCP")) for policy in of_kind(objects, "NetworkPolicy")
                       if matches(policy["spec"]["podSelector"].get("matchLabels", {}), labels)
                       for rule in policy["spec"].get("egress", [])
                       if DNS in rule.get("to", []) for port in rule["ports"]}
        if open_to_dns != {(53, "UDP"), (53, "TCP")}:
            yield f"{name_of(item)} may ask the cluster's DNS by {sorted(open_to_dns)} only"


def only_routers_that_watch_reach_the_api_server(objects):
    for item in of_kind(objects, "Deployment", "StatefulSet"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        anywhere = {port["port"] for policy in of_kind(objects, "NetworkPolicy")
                    if matches(policy["spec"]["podSelector"].get("matchLabels", {}), labels)
                    for rule in policy["spec"].get("egress", []) if not rule.get("to") for port in rule["ports"]}
        if anywhere != ({443, 6443} if watches_services(item["spec"]["template"]["spec"]) else set()):
            yield f"{name_of(item)} may reach {sorted(anywhere)} anywhere"


def metrics_are_for_prometheus_only(objects):
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for item in of_kind(objects, "NetworkPolicy"):
        for rule in item["spec"].get("ingress", []):
            if any(port["port"] in ("metrics", 9400) for port in rule.get("ports", [])):
                if rule.get("from") != [monitoring]:
                    yield f"{name_of(item)}: metrics are open to more than the namespace monitoring"


def jobs_may_only_download(objects):
    """DNS, and HTTPS to anywhere; nobody asks them anything."""
    names = {"to": [DNS], "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    for item in of_kind(objects, "Job"):
        policies = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy")
                    if matches(policy["spec"]["podSelector"].get("matchLabels", {}),
                               item["spec"]["template"]["metadata"]["labels"])]
        out = [rule for policy in policies for rule in policy.get("egress", [])]
        if sorted(out, key=str) != sorted([{"ports": [{"port": 443}]}, names], key=str):
            yield f"{name_of(item)} may call {out}"
        if any(policy.get("ingress") for policy in policies):
            yield f"{name_of(item)} may be called"
