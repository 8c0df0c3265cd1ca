"""`cmake --install` into a folder: the programs are there and serve from there, the systemd units name files that
are there, and a C++ program that knows only the installed tree (examples/client) gets an answer by gRPC.

Run from the repository's root with FLOTILLA_BIN_DIR, FLOTILLA_TEST_MODEL.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FLOTILLA_BIN_DIR"]).resolve().parent
UNITS = ("flotilla-engine", "flotilla-router")
sys.path.insert(0, str(ROOT / "tests/support"))


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class InstallTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = pathlib.Path(cls.folder.name, "prefix")
        run("cmake", "--install", BUILD, "--prefix", cls.prefix, "--strip")

    def test_every_program_is_there(self):
        """What a folder of the product builds is installed, and nothing else."""
        folders = [path for path in ROOT.glob("*/**/CMakeLists.txt")
                   if path.relative_to(ROOT).parts[0] not in (".cache", "build", "tests")]
        names = {name for path in folders for name in re.findall(r"^flotilla_binary\((\S+)", path.read_text(), re.M)}
        self.assertEqual({path.name for path in (self.prefix / "libexec/flotilla").iterdir()}, names)
        self.assertEqual([path.name for path in (self.prefix / "bin").iterdir()], ["flotilla"])

    def test_manual_pages_and_completion(self):
        share = self.prefix / "share"
        pages = {path.name for path in (share / "man/man1").iterdir()}
        self.assertLessEqual({"flotilla.1", "flotilla-serve.1", "flotilla-bench-roofline.1"}, pages)
        for script in ("bash-completion/completions/flotilla", "zsh/vendor-completions/_flotilla",
                       "fish/vendor_completions.d/flotilla.fish"):
            self.assertIn("shortest_queue", (share / script).read_text(), script)

    def test_units_name_what_is_there(self):
        for unit in UNITS:
            text = (self.prefix / f"lib/systemd/system/{unit}.service").read_text()
            self.assertNotIn("@BINDIR@", text)
            program = re.search(r"^ExecStart=(\S+) ", text, re.M)[1]
            settings = re.search(r"^EnvironmentFile=(\S+)$", text, re.M)[1]
            self.assertEqual(pathlib.Path(program), self.prefix / "bin/flotilla")
            self.assertTrue(pathlib.Path(settings).is_relative_to(self.prefix / "etc/flotilla"), settings)
            variable = re.search(r"\$(\w+)$", text.split("ExecStart=")[1].split("\nRestart")[0])[1]
            self.assertIn(f"\n{variable}=", pathlib.Path(settings).read_text())

    def test_the_engine_starts_after_mounts_of_the_network(self):
        text = (self.prefix / "lib/systemd/system/flotilla-engine.service").read_text()
        self.assertRegex(text, r"(?m)^After=(.* )?remote-fs\.target( |$)")

    def test_changed_settings_stay(self):
        settings = self.prefix / "etc/flotilla/router.env"
        self.addCleanup(settings.write_text, settings.read_text())
        settings.write_text("FLOTILLA_ROUTER_FLAGS=--replica=10.0.0.7:50052\n")
        run("cmake", "--install", BUILD, "--prefix", self.prefix, "--component", "flotilla")
        self.assertEqual(settings.read_text(), "FLOTILLA_ROUTER_FLAGS=--replica=10.0.0.7:50052\n")

    def test_a_client_outside_of_the_tree_gets_an_answer(self):
        build = pathlib.Path(self.folder.name, "ask")
        example = self.prefix / "share/doc/libflotilla-client-dev/examples/client"
        run("cmake", "-S", example, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertNotIn(str(BUILD), (build / "build.ninja").read_text())
        run("cmake", "--build", build)
        os.environ["FLOTILLA_BIN_DIR"] = str(self.prefix / "bin")  # by the link, from the installed tree
        from cluster import Cluster
        with Cluster() as cluster:
            self.assertIn("Paris", run(build / "ask", cluster.grpc, "What is the capital of France?"))


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # Cluster closes its files by being dropped
