"""As much of a Kubernetes API server as `kubectl apply --dry-run=client` asks: which kinds there are, and
that nothing exists yet.

Threads: serves on its own, within `with`. It refuses to change anything: a dry run that does would fail.
"""

import http.server
import json
import threading

# apiVersion → kind → (plural, namespaced)
KINDS = {
    "v1": {"Namespace": ("namespaces", False), "Service": ("services", True),
           "ConfigMap": ("configmaps", True), "PersistentVolumeClaim": ("persistentvolumeclaims", True),
           "ServiceAccount": ("serviceaccounts", True)},
    "apps/v1": {"Deployment": ("deployments", True), "StatefulSet": ("statefulsets", True)},
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


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status, reason):
        self.answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                             "code": status})

    def do_GET(self):
        found = discovery(self.path.split("?")[0])
        if found is None:
            self.refuse(404, "NotFound")
        else:
            self.answer(200, found)

    def do_POST(self):
        self.refuse(405, "MethodNotAllowed")

    do_PATCH = do_PUT = do_DELETE = do_POST

    def log_message(self, *_):
        pass


class StubApiServer:
    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
