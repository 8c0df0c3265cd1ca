"""deploy/overlays/fill-models/fill.sh in a folder, with a curl that copies: what comes gets its name only when it is
whole and right, what is right stays, and each failure is said. In each shell of sh, bash and busybox that is here.

Run from the repository's root: python3 tests/deploy/fill_models_test.py
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy/overlays/fill-models/fill.sh"
SHELLS = [shell for shell in (["sh"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]
# Copies the file that the address's last part names, and fails as curl would, with a part of it left.
CURL = """#!/bin/sh
echo "$*" >>"$SERVED/calls"
for last; do :; done
while [ "$1" != --output ]; do shift; done
name=${last##*/}
if [ -e "$SERVED/$name" ]; then cp "$SERVED/$name" "$2"; else echo half >"$2"; echo "curl: (22) 404" >&2; exit 22; fi
"""


def sum_of(data):
    return hashlib.sha256(data).hexdigest()


class FillModelsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        self.models, self.served, self.bin = (root / name for name in ("models", "served", "bin"))
        for folder in (self.models, self.served, self.bin):
            folder.mkdir()
        (self.bin / "curl").write_text(CURL)
        (self.bin / "curl").chmod(0o755)
        self.sources, self.sums = root / "SOURCES", root / "SHA256SUMS"

    def lists(self, sources, sums):
        """Without an end of the last line, as a ConfigMap's literal."""
        self.sources.write_text("\n".join(f"{name} {url}" for name, url in sources.items()))
        self.sums.write_text("\n".join(f"{sum_of(data)}  {name}" for name, data in sums.items()))

    def fill(self, shell=("sh",), script=SCRIPT):
        environment = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "SERVED": str(self.served)}
        return subprocess.run([*shell, script, self.models, self.sources, self.sums], capture_output=True, text=True,
                              timeout=60, env=environment)

    def there(self):
        return {str(path.relative_to(self.models)): path.read_bytes()
                for path in self.models.rglob("*") if path.is_file()}

    def calls(self):
        path = self.served / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_fills_and_then_has_nothing_to_do(self):
        wanted = {"a.gguf": b"one", "b/config.json": b"two", "b/model.safetensors": b"three"}
        for shell in SHELLS:
            with self.subTest(shell=shell):
                self.setUp()
                (self.served / "1").write_bytes(b"one")
                (self.served / "2").write_bytes(b"two")
                (self.served / "3").write_bytes(b"three")
                self.lists({"a.gguf": "https://models.example.com/1", "b/model.safetensors": "https://x.example.com/3",
                            "b/config.json": "https://x.example.com/2", "c.gguf": "https://x.example.com/4"}, wanted)
                run = self.fill(shell)
                self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)
                self.assertEqual(self.there(), wanted)
                self.assertEqual(len(self.calls()), 3)
                for call in self.calls():
                    self.assertIn("--fail --location", call)
                    self.assertIn("--proto =https --proto-redir =https", call)
                again = self.fill(shell)
                self.assertEqual(again.returncode, 0, again.stderr)
                self.assertEqual(again.stdout.count(": is there\n"), 3)
                self.assertEqual(len(self.calls()), 3)

    def test_what_is_wrong_gets_no_name(self):
        """And what engines read meanwhile stays as it was."""
        (self.models / "a.gguf").write_bytes(b"the former one")
        (self.served / "a.gguf").write_bytes(b"a forged one")
        self.lists({"a.gguf": "https://x.example.com/a.gguf"}, {"a.gguf": b"the new one"})
        run = self.fill()
        self.assertEqual(run.returncode, 1)
        self.assertIn("a.gguf: what came has another checksum", run.stderr)
        self.assertEqual(self.there(), {"a.gguf": b"the former one"})
        # The same checks see a script that does not compare.
        careless = pathlib.Path(self.folder.name, "careless.sh")
        careless.write_text(SCRIPT.read_text(encoding="utf-8").replace('! is_right "$name.part" "$sum"', "false"))
        run = self.fill(script=careless)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.there(), {"a.gguf": b"a forged one"})

    def test_a_file_that_changes_is_another_one(self):
        """What has the old one open keeps it."""
        (self.models / "a.gguf").write_bytes(b"the former one")
        (self.served / "a.gguf").write_bytes(b"the new one")
        self.lists({"a.gguf": "https://x.example.com/a.gguf"}, {"a.gguf": b"the new one"})
        with open(self.models / "a.gguf", "rb") as opened:
            self.assertEqual(self.fill().returncode, 0)
            self.assertEqual(opened.read(), b"the former one")
        self.assertEqual(self.there(), {"a.gguf": b"the new one"})

    def test_a_download_that_fails_is_said(self):
        self.lists({"a.gguf": "https://x.example.com/gone"}, {"a.gguf": b"one"})
        run = self.fill()
        self.assertEqual(run.returncode, 1)
        self.assertIn("curl: (22) 404\nerror: a.gguf: the download failed\n", run.stderr)
        self.assertNotIn("a.gguf", self.there())
        (self.served / "gone").write_bytes(b"one")
        self.assertEqual(self.fill().returncode, 0)
        self.assertEqual(self.there(), {"a.gguf": b"one"})

    def test_a_file_without_an_address_is_said(self):
        self.lists({"aa.gguf": "https://x.example.com/1", "a": "https://x.example.com/2"}, {"a.gguf": b"one"})
        run = self.fill()
        self.assertEqual((run.returncode, run.stderr), (1, "error: a.gguf: SOURCES has no address for it\n"))
        self.assertEqual(self.calls(), [])


if __name__ == "__main__":
    unittest.main()
