"""docs/quickstart.md as a reader would follow it: its shell blocks, in order, against real clusters. And the example of
docs/sizing.md, which must print what the page shows.

The fence's info string says what a block is:
  sh serve            one command; a cluster with these flags on free ports, in place of the one before
  sh variables        what a reader sets to the addresses of his cluster; here they are those of ours, but for LAUNCHER,
                      which is what the page's line finds and stays as it is until the page sets it again
  sh test A | B | …   must end with status 0 and print A, B and the others
  sh                  is not run here: it needs a build, a browser or a Kubernetes

They run in a folder whose `flotilla` is the program that was built.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from cluster import BIN, MODEL, Cluster, wait_until

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/quickstart.md"
SIZING = PAGE.with_name("sizing.md")
FENCE = re.compile(r"^```sh(?: +(\w+))?(?: +([^\n]+))?\n(.*?)^```$", re.M | re.S)
KINDS = ("", "serve", "variables", "test")
VARIABLES = {"URL", "GRPC", "METRICS", "LAUNCHER"}
BLOCK_TIMEOUT_S = 120


def blocks(page):
    """(kind, what must be printed, text, line) of each."""
    for match in FENCE.finditer(page):
        expected = match[2].split(" | ") if match[2] else []
        yield match[1] or "", expected, match[3], page.count("\n", 0, match.start()) + 1


def run_block(text, expected, folder, variables):
    """Its output. Fails unless it ends with 0 and prints all that is expected."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # python3 has the clients' packages
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, timeout=BLOCK_TIMEOUT_S,
                          env=os.environ | variables | {"PATH": path, "TMPDIR": str(folder)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
    missing = [words for words in expected if words not in done.stdout]
    assert not missing, f"{missing} not in: {done.stdout}"
    return done.stdout


def launcher_of(text):
    """What the line that sets LAUNCHER finds, on a machine that runs nothing but this test."""
    line = re.search(r"^LAUNCHER=.*$", text, re.M)[0]
    ours = f'pgrep() {{ command pgrep -P {os.getpid()} "$@"; }}\n'
    return subprocess.run(["bash", "-euc", f'{ours}{line}\nprintf %s "$LAUNCHER"'], check=True, capture_output=True,
                          text=True).stdout


def serve_flags(text):
    program, command, *flags = shlex.split(text)
    assert (program, command) == ("./flotilla", "serve"), text
    return flags


def every_worker_restarted(metrics):
    restarts = [value for key, value in metrics.items() if key.startswith("flotilla_worker_restarts_total")]
    return len(restarts) > 1 and min(restarts) >= 1


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "flotilla").symlink_to(pathlib.Path(BIN, "flotilla").resolve())
    return tmp_path


def test_the_page(folder):
    page, cluster, launcher, ran = PAGE.read_text(encoding="utf-8"), None, None, 0
    try:
        for kind, expected, text, line in blocks(page):
            where = f"{PAGE.name}:{line}"
            assert kind in KINDS, where
            assert bool(expected) == (kind == "test"), f"{where}: a test says what it prints, others don't"
            if kind == "serve":
                if cluster:
                    assert cluster.stop() == 0, cluster.logs()
                cluster = Cluster(*serve_flags(text), disturbed=True)
            elif kind == "variables":
                names = set(re.findall(r"^(\w+)=", text, re.M))
                assert names == VARIABLES or launcher and names == {"LAUNCHER"}, where
                launcher = launcher_of(text)
            elif kind == "test":
                variables = {"URL": cluster.http, "GRPC": cluster.grpc, "METRICS": cluster.metrics_url,
                             "LAUNCHER": launcher}
                ours = str(cluster.process.pid)
                assert "$LAUNCHER" not in text or launcher == ours, f"{where}: LAUNCHER is of another cluster"
                print(where, run_block(text, expected, folder, variables))
                ran += 1
        wait_until(lambda: every_worker_restarted(cluster.metrics()), 20, "every worker was killed and is back")
        assert cluster.stop() == 0, cluster.logs()
    finally:
        if cluster:
            cluster.kill()
    assert ran == len(re.findall("^```sh test ", page, re.M)) > 5


def test_a_block_that_fails_is_seen(folder):
    for text in ("false\ntrue", "echo $UNKNOWN", "false | cat", "echo no"):
        with pytest.raises(AssertionError, match="exit status|not in"):
            run_block(text, ["yes"], folder, {})
    assert run_block("echo yes", ["yes"], folder, {}) == "yes\n"


def test_the_example_of_sizing():
    example = re.search(r"^```\n\$ \./flotilla (size [^\n]*)\n(.*?)^```$", SIZING.read_text(encoding="utf-8"), re.M | re.S)
    printed = subprocess.run([os.path.join(BIN, "flotilla"), *shlex.split(example[1]), "--model", MODEL],
                             capture_output=True, text=True, check=True).stdout
    assert printed.replace(f"--model {MODEL} ", "") == example[2]  # the page has the default model
