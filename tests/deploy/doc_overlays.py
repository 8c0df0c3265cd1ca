"""The overlays that the pages of docs/ show, rendered as a reader would have them: a fence that begins with a field of a
kustomization is one, in a folder beside our overlays. One that names no `resources` is for overlays/cpu.
"""

import contextlib
import functools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

import manifests

FENCE = re.compile(r"^```\w*\n((?:patches|images|components|resources|configMapGenerator|nameSuffix):.*?)^```$", re.M | re.S)
LISTS = ("patches", "images", "components", "configMapGenerator")  # whose entries can be left out one by one
ON = {"resources": ["../cpu"]}


def in_page(text, page):
    """PAGE:LINE → the kustomization that stands there."""
    return {f"{page}:{text.count(chr(10), 0, match.start()) + 2}": ON | yaml.safe_load(match[1])
            for match in FENCE.finditer(text)}


@functools.cache
def overlays():
    pages = [(path, path.read_text(encoding="utf-8")) for path in sorted(manifests.ROOT.glob("docs/*.md"))]
    return {name: overlay for path, text in pages
            for name, overlay in in_page(text, path.relative_to(manifests.ROOT)).items()}


@contextlib.contextmanager
def folder_beside_our_overlays():
    """kustomize wants relative paths, and nothing is written to the tree."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(manifests.DEPLOY, pathlib.Path(copy, "deploy"), ignore=shutil.ignore_patterns("launcher", "package"))
        folder = pathlib.Path(copy, "deploy/overlays/of-the-page")
        folder.mkdir()
        subprocess.run([sys.executable, manifests.DEPLOY / "monitoring/generate.py", "--output", folder, "--runbook-base",
                        "https://git.example.com"], check=True)  # for the page that tells to
        yield folder


def render(overlay, folder):
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"} | overlay))
    return manifests.kustomize(folder)


def rendered(name):
    with folder_beside_our_overlays() as folder:
        return render(overlays()[name], folder)


def idle_entries(overlay):
    """What of it changes nothing, as kustomize takes a patch for which there is no target without a word: images[0] is
    the first image. A field that is no list, such as nameSuffix, is one entry."""
    with folder_beside_our_overlays() as folder:
        whole = render(overlay, folder)

        def matters(rest):
            try:
                return render(rest, folder) != whole
            except AssertionError:  # what others build on
                return True

        return [f"{key}[{index}]" for key in LISTS for index in range(len(overlay.get(key, [])))
                if not matters(overlay | {key: overlay[key][:index] + overlay[key][index + 1:]})] + [
                    key for key in overlay if key not in (*LISTS, "resources")
                    and not matters({other: value for other, value in overlay.items() if other != key})]
