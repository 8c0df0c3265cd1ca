"""As much of a Kubernetes API server as `kubectl apply --dry-run=client` asks: which kinds there are, and
that nothing exists yet.

It refuses to change anything: a dry run that does would fail.
"""

from json_server import JsonServer, failure

# apiVersion → kind → (plural, namespaced)
KINDS = {
    "v1": {"Namespace": ("namespaces", False), "Service": ("services", True),
           "ConfigMap": ("configmaps", True), "PersistentVolumeClaim": ("persistentvolumeclaims", True),
           "ServiceAccount": ("serviceaccounts", True)},
    "apps/v1": {"Deployment": ("deployments", True), "StatefulSet": ("statefulsets", True)},
    "batch/v1": {"Job": ("jobs", True)},
    "rbac.authorization.k8s.io/v1": {"Role": ("roles", True), "RoleBinding": ("rolebindings", True)},
    "policy/v1": {"PodDisruptionBudget": ("poddisruptionbudgets", True)},
    "autoscaling/v2": {"HorizontalPodAutoscaler": ("horizontalpodautoscalers", True)},
    "networking.k8s.io/v1": {"NetworkPolicy": ("networkpolicies", True), "Ingress": ("ingresses", True)},
    "gateway.networking.k8s.io/v1": {"HTTPRoute": ("httproutes", True), "GRPCRoute": ("grpcroutes", True)},
    "cert-manager.io/v1": {"Certificate": ("certificates", True), "Issuer": ("issuers", True)},
    "keda.sh/v1alpha1": {"ScaledObject": ("scaledobjects", True)},
    "monitoring.coreos.com/v1": {"PodMonitor": ("podmonitors", True),
                                 "PrometheusRule": ("prometheusrules", True)},
}


def discovery(path):
    """The document that `path` names; None: that is no discovery."""
    if path == "/version":
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [version.split("/") for version in KINDS if "/" in version]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
             "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version}}
            for group, version in groups]}
    version = path.removeprefix("/apis/") if path.startswith("/apis/") else path.removeprefix("/api/")
    if version not in KINDS:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [
        {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind,
         "verbs": ["create", "get", "patch"]}
        for kind, (plural, namespaced) in KINDS[version].items()]}


def stub_api_server():
    def answer(path):
        found = discovery(path)
        return failure(404, "NotFound") if found is None else (200, found)

    return JsonServer(answer)
