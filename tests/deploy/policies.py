"""What must be true of every rendered set of manifests, one named function a rule.

A rule takes the objects of a set and yields a sentence for each violation. tests/deploy/manifests_test.py
holds all rules against all sets, and each rule against the mistakes of planted_mistakes.yaml.
"""

import re

from manifest_objects import (containers, flag, flags, images, matches, name_of, of_kind, pod_labels, pods)

CLUSTER_WIDE = ("Namespace",)
PRE_STOP_MARGIN_S = 10
DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
WAITING_METRIC = "flotilla_scheduler_requests_waiting"


# --- The pods' security (Pod Security Standards, "restricted", and what goes beyond) ----------------

def namespace_enforces_restricted(objects):
    for item in of_kind(objects, "Namespace"):
        labels = item["metadata"].get("labels", {})
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{name_of(item)} does not enforce restricted"


def pods_run_as_65532(objects):
    for owner, spec in pods(objects):
        context = spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") != 65532:
            yield f"{owner} may run as root or as another user than 65532"


def pods_have_the_default_seccomp_profile(objects):
    for owner, spec in pods(objects):
        if spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{owner} has no RuntimeDefault seccomp profile"


def watches_services(spec):
    return any(flags(container, "replica-service") for container in spec["containers"])


def pods_have_no_service_account_token(objects):
    """But routers that ask the API server."""
    for owner, spec in pods(objects):
        if spec.get("automountServiceAccountToken") is not watches_services(spec):
            yield f"{owner} gets a service account's token for nothing, or needs one and gets none"


def service_accounts_may_only_watch_endpoints(objects):
    """And may do that where a pod of theirs needs it."""
    allowed = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    for item in of_kind(objects, "Role", "ClusterRole", "ClusterRoleBinding"):
        if item["kind"] != "Role" or item["rules"] != allowed:
            yield f"{name_of(item)} allows more than to list and watch endpointslices of its namespace"
    roles = {item["metadata"]["name"] for item in of_kind(objects, "Role")}
    accounts = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount")}
    able = {subject["name"] for item in of_kind(objects, "RoleBinding") if item["roleRef"]["name"] in roles
            for subject in item["subjects"] if subject["kind"] == "ServiceAccount"} & accounts
    for owner, spec in pods(objects):
        if watches_services(spec) != (spec.get("serviceAccountName") in able):
            yield f"{owner}: its service account may not watch endpointslices, or need not"


def pods_share_nothing_with_their_host(objects):
    for owner, spec in pods(objects):
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{owner}: {key}"
        for volume in spec.get("volumes", []):
            if "hostPath" in volume:
                yield f'{owner}: volume {volume["name"]} is a hostPath'


def containers_can_change_nothing(objects):
    for where, container in containers(objects):
        context = container.get("securityContext", {})
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{where}: its root can be written to"
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"{where}: may gain privileges"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{where}: keeps capabilities"


# --- Resources and images ----------------------------------------------------------------------------

def containers_have_requests_and_a_memory_limit(objects):
    for where, container in containers(objects):
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("requests", {})):
            yield f"{where}: requests no cpu or no memory"
        if "memory" not in resources.get("limits", {}):
            yield f"{where}: no limit of memory"


def engines_are_guaranteed(objects):
    """Requests equal to limits in each container, or the pod gets neither cores nor memory of its own."""
    for item in of_kind(objects, "StatefulSet"):
        for where, container in containers([item]):
            resources = container.get("resources", {})
            limits = resources.get("limits", {})
            if resources.get("requests") != limits or not {"cpu", "memory"} <= set(limits):
                yield f"{where}: its requests are not its limits"


def memory_volumes_have_a_size(objects):
    for owner, spec in pods(objects):
        for volume in spec.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
                yield f'{owner}: volume {volume["name"]} has no sizeLimit'


def packed_weights_have_room(objects):
    """They are as large as the model. On a volume with a size the pod would be evicted, started anew and evicted."""
    for owner, spec in pods(objects):
        claims = {volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume}
        for container in spec["containers"]:
            if "engine" not in container.get("args", []):
                continue
            folder = flag(container, "pack-cache-dir") or "auto"
            kept = [mount["mountPath"] for mount in container["volumeMounts"]
                    if mount["name"] in claims and not mount.get("readOnly")]
            if folder != "off" and not any(f"{folder}/".startswith(f"{path}/") for path in kept):
                yield f"{owner}: --pack-cache-dir={folder} is neither off nor on a claim"


def images_have_a_version(objects):
    for where, image in images(objects):
        tag = image.rsplit("/", 1)[-1].partition(":")[2]
        if tag in ("", "latest") and "@sha256:" not in image:
            yield f"{where}: image {image} has no version"


def images_name_their_registry(objects):
    """A kubelet takes a name without one for Docker Hub's: a folder that may be anybody's."""
    for where, image in images(objects):
        registry = image.partition("/")[0]
        if "/" not in image or not (registry == "localhost" or "." in registry or ":" in registry):
            yield f"{where}: {image} would be docker.io/{image}"


def volumes_are_there(objects):
    for owner, spec in pods(objects):
        there = {volume["name"] for volume in spec.get("volumes", [])}
        mounted = {mount["name"] for container in spec["containers"] + spec.get("initContainers", [])
                   for mount in container.get("volumeMounts", [])}
        for name in sorted(there ^ mounted):
            yield f"{owner}: volume {name} is not both mounted and there"


def files_of_flags_are_mounted(objects):
    for where, container in containers(objects):
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount.get("readOnly")]
        for arg in container.get("args", []):
            name, _, path = arg.partition("=")
            if name.endswith("-file") and not any(path.startswith(mount + "/") for mount in mounts):
                yield f"{where}: {path} of {name} is on no volume that is read only"


# --- Life of a pod -------------------------------------------------------------------------------------

def containers_have_three_probes_on_their_own_ports(objects):
    for where, container in containers(objects, init=False):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            port = probe.get("httpGet", probe.get("grpc", {})).get("port")
            if port not in ports and port not in ports.values():
                yield f"{where}: {kind} asks port {port}, it has {ports}"


def ports_are_those_of_the_flags(objects):
    for where, container in containers(objects, init=False):
        for port in container.get("ports", []):
            name = {"http": "port", "grpc": "grpc-port", "metrics": "metrics-port"}.get(port["name"])
            if name is None or flag(container, name) != str(port["containerPort"]):
                yield f'{where}: port {port["name"]} is {port["containerPort"]}, --{name} {flag(container, name)}'
        if flag(container, "host") != "0.0.0.0":
            yield f'{where}: --host={flag(container, "host")} is not reached from outside the pod'


def grace_covers_the_drain(objects):
    for owner, spec in pods(objects):
        for container in spec["containers"]:
            drain_ms, drain_s = flag(container, "drain-grace-ms"), flag(container, "shutdown-timeout")
            if drain_ms is None and drain_s is None:
                yield f'{owner}/{container["name"]}: no --drain-grace-ms or --shutdown-timeout'
                continue
            drain = float(drain_s) if drain_ms is None else int(drain_ms) / 1000
            sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            if sleep < 1:
                yield f'{owner}/{container["name"]}: preStop does not wait for the proxies'
            if spec.get("terminationGracePeriodSeconds", 30) < drain + sleep + PRE_STOP_MARGIN_S:
                yield f'{owner}: its grace is shorter than preStop {sleep} s and drain {drain:g} s'


def every_workload_has_a_disruption_budget(objects):
    budgets = [item["spec"]["selector"]["matchLabels"] for item in of_kind(objects, "PodDisruptionBudget")]
    for owner, labels in pod_labels(objects).items():
        if sum(matches(selector, labels) for selector in budgets) != 1:
            yield f"{owner} has not one PodDisruptionBudget"


def engines_start_together(objects):
    for item in of_kind(objects, "StatefulSet"):
        if item["spec"].get("podManagementPolicy") != "Parallel":
            yield f"{name_of(item)} starts one pod after the other"


# --- Names and selectors ---------------------------------------------------------------------------------

def everything_is_in_a_known_namespace(objects):
    for item in objects:
        namespace = item["metadata"].get("namespace")
        if item["kind"] not in CLUSTER_WIDE and namespace not in ("flotilla", "monitoring"):
            yield f"{name_of(item)} is in namespace {namespace}"


def selectors_find_pods(objects):
    labels = pod_labels(objects).values()
    for item in of_kind(objects, "Service", "NetworkPolicy", "PodDisruptionBudget"):
        spec = item["spec"]
        selector = spec.get("selector", spec.get("podSelector", {}))
        selector = selector.get("matchLabels", {} if item["kind"] == "NetworkPolicy" else selector)
        if not any(matches(selector, pod) for pod in labels):
            yield f"{name_of(item)} selects no pod with {selector}"


def stateful_sets_have_their_headless_service(objects):
    services = {item["metadata"]["name"]: item["spec"] for item in of_kind(objects, "Service")}
    for item in of_kind(objects, "StatefulSet"):
        service = services.get(item["spec"]["serviceName"], {})
        labels = item["spec"]["template"]["metadata"]["labels"]
        if service.get("clusterIP") != "None" or not matches(service.get("selector", {}), labels):
            yield f'{name_of(item)}: {item["spec"]["serviceName"]} is not its headless Service'
        elif not service.get("publishNotReadyAddresses"):
            yield f"{name_of(item)}: routers can't find a pod that is not ready yet"


def routes_go_to_services(objects):
    services = {item["metadata"]["name"]: {port["port"] for port in item["spec"]["ports"]}
                for item in of_kind(objects, "Service")}
    for item in of_kind(objects, "HTTPRoute", "GRPCRoute"):
        for rule in item["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if backend["port"] not in services.get(backend["name"], set()):
                    yield f'{name_of(item)}: no Service {backend["name"]}:{backend["port"]}'


def engines_at(address, objects):
    """Names of the StatefulSets whose pods a router finds at NAME:PORT; a sentence if that is no place for engines."""
    host, _, port = address.rpartition(":")
    service = next((item["spec"] for item in of_kind(objects, "Service") if item["metadata"]["name"] == host), {})
    if service.get("clusterIP") != "None":
        return f"{host} is no headless Service"
    # Behind a headless name are the pods themselves: nothing maps a Service's port to theirs.
    found = {item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]
             for item in of_kind(objects, "StatefulSet")
             if matches(service["selector"], item["spec"]["template"]["metadata"]["labels"])}
    for name, container in found.items():
        if flag(container, "grpc-port") != port:
            return f"{address}, but {name} has --grpc-port={flag(container, 'grpc-port')}"
    return set(found) or f"{host} selects no engines"


def routers_find_every_engine(objects):
    engines = {item["metadata"]["name"] for item in of_kind(objects, "StatefulSet")}
    for where, container in containers(objects, init=False):
        if not where.startswith("Deployment/router"):
            continue
        found = set()
        for address in flags(container, "replica-dns") + flags(container, "replica-service"):
            there = engines_at(address, objects)
            if isinstance(there, str):
                yield f"{where}: {address}: {there}"
            else:
                found |= there
        if found != engines:
            yield f"{where}: finds {sorted(found)}, there are {sorted(engines)}"
        if flags(container, "replica"):
            yield f"{where}: --replica names engines that may go"


def names_in_certificates(objects, usage):
    """Secret → the names that its certificate has for this usage."""
    return {item["spec"]["secretName"]: item["spec"].get("dnsNames", [])
            for item in of_kind(objects, "Certificate") if usage in item["spec"].get("usages", [])}


def secret_of(spec, path):
    """The Secret that a container's file is of; None: of none."""
    for mount in spec["containers"][0].get("volumeMounts", []):
        if path and path.startswith(mount["mountPath"] + "/"):
            volume = next(volume for volume in spec["volumes"] if volume["name"] == mount["name"])
            return volume.get("secret", {}).get("secretName")
    return None


def both_sides_speak_tls_or_none(objects):
    """Where Certificates are in the set, they have the names and usages that the other side asks for."""
    specs = dict(pods(objects))
    routers = {owner: spec for owner, spec in specs.items() if owner.startswith("Deployment/router")}
    engines = {owner: spec for owner, spec in specs.items() if owner.startswith("StatefulSet/")}
    servers, clients = (names_in_certificates(objects, f"{side} auth") for side in ("server", "client"))
    for owner, spec in routers.items():
        router = spec["containers"][0]
        for other, engine_spec in engines.items():
            engine = engine_spec["containers"][0]
            if bool(flags(engine, "tls-cert-file")) != bool(flags(router, "replica-tls-ca-file")):
                yield f"{owner} and {other}: one speaks TLS, the other does not"
            if flags(engine, "tls-client-ca-file") and not flags(router, "replica-tls-cert-file"):
                yield f"{owner} has no certificate for {other}"
            server = secret_of(engine_spec, flag(engine, "tls-cert-file"))
            if server in servers and flag(router, "replica-tls-server-name") not in servers[server]:
                yield f'{other} is called {servers[server]}, {owner} asks for {flag(router, "replica-tls-server-name")}'
        client = secret_of(spec, flag(router, "replica-tls-cert-file"))
        if of_kind(objects, "Certificate") and client and client not in clients:
            yield f"{owner}: the certificate in {client} is none for a client"


def probes_need_no_certificate(objects):
    for where, container in containers(objects, init=False):
        metrics = ("metrics", int(flag(container, "metrics-port") or 0))
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            if flags(container, "tls-cert-file") and probe.get("httpGet", {}).get("port") not in metrics:
                yield f"{where}: {kind} asks a port that speaks TLS"


# --- Scaling and the network --------------------------------------------------------------------------------

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


def models_are_verified_before_they_are_read(objects):
    for owner, spec in pods(objects):
        from_volume = [volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume]
        for volume in from_volume:
            checks = [container for container in spec.get("initContainers", [])
                      if re.search(r"\bsha256sum\b", " ".join(container.get("command", [])))
                      and {"--check", "--strict"} <= set(container.get("args", []))
                      and any(mount["name"] == volume for mount in container["volumeMounts"])]
            if not checks:
                yield f"{owner}: nobody compares the files of volume {volume} with their checksums"


RULES = [value for name, value in sorted(globals().items())
         if callable(value) and getattr(value, "__module__", "") == __name__
         and name not in ("engines_at", "names_in_certificates", "secret_of", "watches_services")]
