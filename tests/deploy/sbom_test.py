"""deploy/images/sbom.py over a small root file system: what it lists is what is there, and only that.

Run from the repository's root: python3 tests/deploy/sbom_test.py
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


class SbomTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for package in ("coreutils", "libc6", "libstdc++6", "flotilla"):
            (self.root / "usr/share/doc" / package).mkdir(parents=True)
        (self.root / "usr/bin").mkdir()
        (self.root / "usr/bin/flotilla-router").write_bytes(b"a program")
        (self.root / "usr/bin/sha256sum").write_bytes(b"of coreutils")

    def run_sbom(self, epoch=EPOCH):
        return subprocess.run([sys.executable, ROOT / "deploy/images/sbom.py", self.root, "flotilla-router", "0.1.0"],
                              capture_output=True, text=True, timeout=60,
                              env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})

    def sbom(self, **options):
        run = self.run_sbom(**options)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_packages_are_those_of_the_root_with_dpkgs_versions(self):
        found = {package["name"]: package["versionInfo"] for package in self.sbom()["packages"]}
        for name in ("coreutils", "libc6", "libstdc++6"):
            version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True)
            self.assertEqual(found.pop(name), version.stdout)
        self.assertEqual(found.pop("flotilla-router"), "0.1.0")
        self.assertIn(f"xgrammar=={found.pop('xgrammar')} ", (ROOT / "cmake/xgrammar.lock").read_text())
        self.assertEqual(found, {})

    def test_cublas_is_nvidias(self):
        folder = self.root / "usr/local/cuda/lib"
        folder.mkdir(parents=True)
        (folder / "libcublasLt.so.13").write_bytes(b"a library")
        found = {package["name"]: package for package in self.sbom()["packages"]}
        self.assertEqual(found["nvidia-cublas"]["versionInfo"], "13")
        self.assertIn("NVIDIA", found["nvidia-cublas"]["licenseDeclared"])

    def test_nccl_has_the_version_that_is_pinned(self):
        folder = self.root / "usr/lib/x86_64-linux-gnu"
        folder.mkdir(parents=True)
        (folder / "libnccl.so.2").write_bytes(b"a library")
        found = {package["name"]: package for package in self.sbom()["packages"]}
        nccl = found["nvidia-nccl-cu13"]
        self.assertIn(f"nvidia-nccl-cu13=={nccl['versionInfo']} ", (ROOT / "cmake/nccl.lock").read_text())
        self.assertEqual(nccl["licenseDeclared"], "BSD-3-Clause")

    def test_urls_of_packages_are_escaped(self):
        urls = [ref["referenceLocator"] for package in self.sbom()["packages"]
                for ref in package.get("externalRefs", [])]
        self.assertEqual(len(urls), 4)
        for url in urls:
            self.assertRegex(
                url, r"^pkg:(deb/debian|pypi)/[a-z0-9.%B-]+@[A-Za-z0-9.:~%-]+(\?arch=\w+&distro=bookworm)?$")

    def test_programs_are_ours_with_their_checksums(self):
        files = self.sbom()["files"]
        self.assertEqual([file["fileName"] for file in files], ["./usr/bin/flotilla-router"])
        checksums = {entry["algorithm"]: entry["checksumValue"] for entry in files[0]["checksums"]}
        self.assertEqual(checksums["SHA256"], hashlib.sha256(b"a program").hexdigest())

    def test_relations_are_between_what_is_listed(self):
        sbom = self.sbom()
        listed = [item["SPDXID"] for item in [sbom, *sbom["packages"], *sbom["files"]]]
        self.assertEqual(len(listed), len(set(listed)))
        for name in listed:
            self.assertRegex(name, r"^SPDXRef-[A-Za-z0-9.-]+$")
        ends = {relation[end] for relation in sbom["relationships"] for end in ("spdxElementId", "relatedSpdxElement")}
        self.assertEqual(ends, set(listed))

    def test_the_same_root_and_time_give_the_same_bytes(self):
        self.assertEqual(self.run_sbom().stdout, self.run_sbom().stdout)
        self.assertEqual(self.sbom()["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        self.assertEqual(self.sbom(epoch=EPOCH + 1)["creationInfo"]["created"], "2023-11-14T22:13:21Z")
        before = self.sbom()["documentNamespace"]
        (self.root / "usr/bin/flotilla-router").write_bytes(b"another program")
        self.assertNotEqual(self.sbom()["documentNamespace"], before)
        self.assertTrue(re.match(r"https://\S+-[0-9a-f]{64}$", before), before)

    def test_a_package_that_dpkg_does_not_know_ends_it(self):
        (self.root / "usr/share/doc/no-such-package").mkdir()
        self.assertNotEqual(self.run_sbom().returncode, 0)


if __name__ == "__main__":
    unittest.main()
