"""What must be true of every rendered set of manifests, one named function a rule; here those of pods and names, in
policies_*.py the others.

A rule takes the objects of a set and yields a sentence for each violation. tests/deploy/manifests_test.py
holds all rules against all sets, and each rule against the mistakes of planted_mistakes.yaml.
"""

import inspect
import sys

import policies_models
import policies_network
import policies_tls
from manifest_objects import (containers, flag, flags, images, matches, mebibytes, name_of, of_kind, pod_labels, pods,
                              serving, watches_services)

CLUSTER_WIDE = ("Namespace",)
PRE_STOP_MARGIN_S = 10


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
    """Requests equal to limits in each container, or the pod gets neither cores nor memory of its own. Disk is no part of
    that."""
    for item in of_kind(objects, "StatefulSet"):
        for where, container in containers([item]):
            resources = container.get("resources", {})
            limits = resources.get("limits", {})
            requests = {name: value for name, value in resources.get("requests", {}).items() if name != "ephemeral-storage"}
            if requests != limits or not {"cpu", "memory"} <= set(limits):
                yield f"{where}: its requests are not its limits"


def what_is_written_to_disk_is_asked_for(objects):
    """An emptyDir is the node's disk. On a node that lacks it, pods that use more than they asked for are evicted first."""
    for owner, spec in pods(objects):
        disk = sum(mebibytes(volume["emptyDir"].get("sizeLimit", "0Mi")) for volume in spec.get("volumes", [])
                   if "emptyDir" in volume and volume["emptyDir"].get("medium") != "Memory")
        asked = sum(mebibytes(container.get("resources", {}).get("requests", {}).get("ephemeral-storage", "0Mi"))
                    for container in spec["containers"])
        if asked < disk:
            yield f"{owner}: its volumes may have {disk} MiB of the node's disk, it asks for {asked}"


def memory_volumes_have_a_size(objects):
    for owner, spec in pods(objects):
        for volume in spec.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
                yield f'{owner}: volume {volume["name"]} has no sizeLimit'


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


def volumes_have_one_source(objects):
    for owner, spec in pods(objects):
        for volume in spec.get("volumes", []):
            if len(volume) != 2:
                yield f'{owner}: volume {volume["name"]} is one of {sorted(set(volume) - {"name"})}'


# --- Life of a pod -------------------------------------------------------------------------------------

def containers_have_three_probes_on_their_own_ports(objects):
    for where, container in containers(serving(objects), init=False):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            port = probe.get("httpGet", probe.get("grpc", {})).get("port")
            if port not in ports and port not in ports.values():
                yield f"{where}: {kind} asks port {port}, it has {ports}"


def ports_are_those_of_the_flags(objects):
    for where, container in containers(serving(objects), init=False):
        for port in container.get("ports", []):
            name = {"http": "port", "grpc": "grpc-port", "metrics": "metrics-port"}.get(port["name"])
            if name is None or flag(container, name) != str(port["containerPort"]):
                yield f'{where}: port {port["name"]} is {port["containerPort"]}, --{name} {flag(container, name)}'
        if flag(container, "host") != "0.0.0.0":
            yield f'{where}: --host={flag(container, "host")} is not reached from outside the pod'


def grace_covers_the_drain(objects):
    for owner, spec in pods(serving(objects)):
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


def grpc_clients_leave_while_routers_linger(objects):
    for where, container in containers(serving(objects), init=False):
        if flag(container, "replica-dns") is None and flag(container, "replica-service") is None:
            continue
        age, linger = flag(container, "max-grpc-connection-age"), flag(container, "drain-linger-ms")
        if age is None or linger is None or int(linger) < 1000 * int(age) * 1.1:  # gRPC's own jitter
            yield f"{where}: --drain-linger-ms={linger} is less than --max-grpc-connection-age={age} s"
        elif int(linger) >= int(flag(container, "drain-grace-ms")):
            yield f"{where}: --drain-linger-ms={linger} leaves nothing of --drain-grace-ms"


def disruption_budgets_hold_nothing_broken(objects):
    """A pod that is not ready would keep its node from being drained, as long as it is not."""
    for item in of_kind(objects, "PodDisruptionBudget"):
        if item["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name_of(item)} keeps pods that are not ready"


def every_workload_has_a_disruption_budget(objects):
    budgets = [item["spec"]["selector"]["matchLabels"] for item in of_kind(objects, "PodDisruptionBudget")]
    for owner, labels in pod_labels(serving(objects)).items():
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


def instances_are_pods_of_a_namespace(objects):
    """Dashboards and alerts say `instance`, and two namespaces may have an engine-0 each."""
    pod = {"sourceLabels": ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"], "separator": "/",
           "targetLabel": "instance"}
    for item in of_kind(objects, "PodMonitor"):
        for endpoint in item["spec"]["podMetricsEndpoints"]:
            if pod not in endpoint.get("relabelings", []):
                yield f"{name_of(item)}: `instance` is not the pod's namespace and name"


def rules_of(module):
    """Its functions that take the objects and nothing else."""
    return [value for _, value in sorted(vars(module).items())
            if inspect.isfunction(value) and value.__module__ == module.__name__
            and list(inspect.signature(value).parameters) == ["objects"]]


RULES = [rule for module in (sys.modules[__name__], policies_models, policies_network, policies_tls)
         for rule in rules_of(module)]
