"""Renders the manifests of deploy/ with a real kubectl, for the tests beside this file.

A rendered set is what `kubectl apply -k` would send: an overlay, or the base with one component on top.
kubectl must have kustomize 4 or later (1.27; Debian 12's is 1.20). Without one nothing can be said about
the manifests: the tests are then skipped and counted, and fail where CI is set.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OLDEST_KUBECTL = (1, 27)
SKIPPED = 77  # the exit status that ctest counts as skipped

OVERLAYS = sorted(path.parent.name for path in DEPLOY.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in DEPLOY.glob("components/*/kustomization.yaml"))


def kubectl_version():
    """(major, minor) of the kubectl in PATH; None if there is none."""
    if shutil.which("kubectl") is None:
        return None
    run = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True)
    if run.returncode != 0:
        return None
    version = json.loads(run.stdout)["clientVersion"]
    return int(version["major"]), int(version["minor"].rstrip("+"))


def why_skipped():
    """Why the manifests can't be tested here; empty if they can. Fails in CI instead."""
    version = kubectl_version()
    if version is not None and version >= OLDEST_KUBECTL:
        return ""
    found = "there is none" if version is None else f"here is {version[0]}.{version[1]}"
    reason = f"rendering needs kubectl 1.27 or later in PATH; {found}"
    assert not os.environ.get("CI"), reason
    return reason


def kustomize(folder):
    run = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert run.returncode == 0, f"kubectl kustomize {folder}: {run.stderr}"
    assert not run.stderr, f"kubectl kustomize {folder} warns: {run.stderr}"
    return run.stdout


@functools.cache
def rendered(name):
    """The text of `overlays/cpu`, or of `components/hpa` on top of the base."""
    return kustomize(DEPLOY / name) if name.startswith("overlays/") else on_the_base(name)


def on_the_base(*components):
    """The text of the base with these, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        base, *added = (os.path.relpath(DEPLOY / path, folder) for path in ("base", *components))
        pathlib.Path(folder, "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
            f"resources: [{base}]\ncomponents: [{', '.join(added)}]\n")
        return kustomize(folder)


def texts():
    """Name → text of everything that can be applied."""
    names = [f"overlays/{name}" for name in OVERLAYS]
    names += [f"components/{name}" for name in COMPONENTS]
    names += ["monitoring"] if (DEPLOY / "monitoring/kustomization.yaml").exists() else []
    return {name: rendered(name) for name in names}
