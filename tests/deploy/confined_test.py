"""deploy/images/confined.py: that it sees each thing in which a process is not as confined as a pod's.

Run from the repository's root: python3 tests/deploy/confined_test.py
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy/images/confined.py"
sys.path.insert(0, str(SCRIPT.parent))
import confined  # noqa: E402 - found by the line above

CONFINED = {"Name": "flotilla", "Pid": "7", "Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532",
            "Groups": "65532 ", "NoNewPrivs": "1"} | {key: "0000000000000000" for key in confined.CAPABILITIES}


class ConfinedTest(unittest.TestCase):

    def test_what_is_confined_is_taken(self):
        self.assertEqual(list(confined.wrong_privileges(CONFINED)), [])
        self.assertEqual(list(confined.wrong_privileges(CONFINED | {"Groups": ""})), [])

    def test_each_privilege_is_seen(self):
        for key, value in {"Uid": "0\t65532\t65532\t65532", "Gid": "65532\t0\t65532\t65532", "Groups": "0 65532 ",
                           "NoNewPrivs": "0", "CapInh": "0000000000000001", "CapPrm": "0000000000000400",
                           "CapEff": "0000000000200000", "CapBnd": "0000000000000080",
                           "CapAmb": "0000000000000400"}.items():
            with self.subTest(key):
                self.assertEqual(list(confined.wrong_privileges(CONFINED | {key: value})),
                                 [f"flotilla (7): {key} {'are' if key == 'Groups' else 'is'} {value}"])

    def test_file_systems_are_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:  # /tmp can be written to, and is no tmpfs of 64 KiB
            there = os.statvfs(folder)
            size = there.f_blocks * there.f_frsize
            self.assertEqual(list(confined.wrong_file_systems(pathlib.Path(folder), {".": size, "..": 65536})),
                             ["the root can be written to", f".. has {size} bytes, not 65536"])

    def test_the_kernel_is_asked(self):
        """All processes beside PID too: this test is one of them, and so is what it starts."""
        child = subprocess.Popen(["sleep", "60"])
        try:
            run = subprocess.run([sys.executable, SCRIPT, str(child.pid), "dev=64k"], capture_output=True, text=True,
                                 timeout=60)
        finally:
            child.kill()
            child.wait()
        self.assertEqual((run.returncode, run.stderr), (1, ""))
        for pid in (child.pid, os.getpid()):
            self.assertIn(f" ({pid}): ", run.stdout)
        self.assertRegex(run.stdout, r"(?m)^dev has \d+ bytes, not 65536$")


if __name__ == "__main__":
    unittest.main()
