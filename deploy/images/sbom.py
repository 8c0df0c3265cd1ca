"""sbom.py ROOT NAME VERSION: prints what is in a root file system of stage.sh as SPDX 2.3 (JSON).

That are our programs with their checksums, the Debian packages of all other programs and libraries (each has a folder
in ROOT/usr/share/doc) with the versions that dpkg knows here, cuBLASLt and NCCL, and what is compiled into our programs.
Environment: SOURCE_DATE_EPOCH, the time that it says; the same root and time give the same bytes. Errors: a package
that dpkg does not know, or no time, end it.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
OURS = "flotilla"


def spdx_id(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def debian_packages(root):
    """(name, version, architecture, source) of each, by name."""
    names = sorted(path.name for path in (root / "usr/share/doc").iterdir() if path.name != OURS)
    fields = "${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
    known = subprocess.run(["dpkg-query", "-W", "-f", fields, *names], capture_output=True, text=True, check=True)
    return [line.split("\t") for line in sorted(set(known.stdout.splitlines()))]


def package(name, version, url=None, **more):
    if url is not None:
        more["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}]
    return {"SPDXID": spdx_id("Package", name), "name": name, "versionInfo": version, "filesAnalyzed": False,
            "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", **more}


def of_debian(name, version, architecture, source):
    url = f"pkg:deb/debian/{name.replace('+', '%2B')}@{version.replace('+', '%2B')}?arch={architecture}&distro=bookworm"
    return package(name, version, url=url, sourceInfo=f"Debian's source package {source}")


def pinned(requirement):
    """Of what is no Debian package: the version in cmake/*.lock."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((SOURCE / "cmake").glob("*.lock"))]
    return next(match[1] for text in texts if (match := re.match(rf"{requirement}==(\S+)", text)))


def compiled_in():
    version = pinned("xgrammar")
    return package("xgrammar", version, url=f"pkg:pypi/xgrammar@{version}", licenseDeclared="Apache-2.0")


def of_nvidia(root):
    """cuBLASLt, if it is there, with its interface's version; NCCL with the one that cmake/nccl.lock pins."""
    found = sorted(root.glob("usr/**/libcublasLt.so.*"))
    libraries = [package("nvidia-cublas", path.name.partition(".so.")[2],
                         licenseDeclared="LicenseRef-NVIDIA-CUDA-EULA") for path in found[:1]]
    if any(root.glob("usr/**/libnccl.so.2")):
        version = pinned("nvidia-nccl-cu13")
        libraries.append(package("nvidia-nccl-cu13", version, url=f"pkg:pypi/nvidia-nccl-cu13@{version}",
                                 licenseDeclared="BSD-3-Clause"))
    return libraries


def program(path, root):
    data = path.read_bytes()
    return {"SPDXID": spdx_id("File", path.name), "fileName": f"./{path.relative_to(root)}", "fileTypes": ["BINARY"],
            "checksums": [{"algorithm": kind.upper(), "checksumValue": hashlib.new(kind, data).hexdigest()}
                          for kind in ("sha1", "sha256")],
            "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"}


def document(root, name, version):
    ours = package(name, version, licenseDeclared="Apache-2.0")
    inside = [of_debian(*each) for each in debian_packages(root)] + of_nvidia(root)
    static = compiled_in()
    files = [program(path, root) for path in sorted((root / "usr/bin").glob(f"{OURS}*"))]
    created = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", each) for each in [ours, *files]]
    relations += [(ours["SPDXID"], "CONTAINS", each) for each in inside]
    relations.append((ours["SPDXID"], "STATIC_LINK", static))
    made = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
            "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": ["Organization: Flotilla", "Tool: deploy/images/sbom.py"]},
            "packages": [ours, static, *inside], "files": files,
            "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other["SPDXID"]}
                              for one, kind, other in relations]}
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
    return made | {"documentNamespace": f"https://flotilla.example.com/spdx/{name}-{version}-{digest}"}


if __name__ == "__main__":
    print(json.dumps(document(pathlib.Path(sys.argv[1]), *sys.argv[2:4]), indent=1))
