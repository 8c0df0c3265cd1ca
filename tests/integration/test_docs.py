"""README.md, ARCHITECTURE.md and docs/*.md as a reader would follow them: each page's shell blocks, in order, against real
clusters. tests/support/doc_fences.py has what the words behind a fence's ``` mean; a fence without them fails.

Blocks run in a folder of their own, whose `flotilla` is the program that was built and whose `deploy` is the source
tree's. Addresses that a page has from the ready line (127.0.0.1:8000 and so on) become those of our cluster.
"""

import collections
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import pytest
from cluster import BIN, Cluster, free_port, wait_until
from doc_fences import ELSEWHERE, console_parts, faults_of, fences_of, prints

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
VARIABLES = {"URL", "GRPC", "METRICS", "LAUNCHER"}
FULL = os.environ.get("FLOTILLA_DOCS") == "full"
BLOCK_TIMEOUT_S = 1800
APPENDED = {"prometheus": "--web.listen-address=127.0.0.1:{port}"}  # its own default port may be taken


def named(path):
    return str(path.relative_to(ROOT))


def run_block(text, expected, folder, variables):
    """Its output. Fails unless it ends with 0 and prints all that is expected."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, timeout=BLOCK_TIMEOUT_S,
                          env=environment(folder, variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
    missing = [words for words in expected if words not in done.stdout]
    assert not missing, f"{missing} not in: {done.stdout}"
    return done.stdout


def environment(folder, variables):
    path = f"{pathlib.Path(sys.executable).parent}:{folder}:{os.environ['PATH']}"  # python3 has the clients' packages
    return os.environ | variables | {"PATH": path, "TMPDIR": str(folder)}


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


class Reader:
    """Who follows a page. One cluster at a time."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = None
        self.launcher = None
        self.background = []
        self.ran = collections.Counter()

    def follow(self, name, fences):
        for fence in fences:
            where = f"{name}:{fence.line}"
            try:
                self._take(fence)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            self.ran[fence.kind or fence.language] += 1

    def _take(self, fence):
        if fence.language == "console":
            for command, shown in console_parts(fence.text):
                printed = run_block(command, [], self.folder, self._variables())
                assert prints(shown, printed), f"the page shows\n{shown}\nbut it prints\n{printed}"
        elif fence.kind == "serve":
            self.stop()
            self.cluster = Cluster(*serve_flags(fence.text), disturbed=True)
        elif fence.kind == "variables":
            names = set(re.findall(r"^(\w+)=", fence.text, re.M))
            assert names and names <= VARIABLES, f"variables are {VARIABLES}"
            if "LAUNCHER" in names:
                self.launcher = launcher_of(fence.text)
        elif fence.kind == "background":
            self._start(fence)
        elif fence.kind in ("test", "run") or fence.kind == "long" and FULL:
            ours = self.cluster and str(self.cluster.process.pid)
            assert "$LAUNCHER" not in fence.text or self.launcher == ours, "LAUNCHER is of another cluster"
            print(run_block(self._ours(fence.text), fence.expected, self.folder, self._variables()))

    def _variables(self):
        if not self.cluster:
            return {}
        return {"URL": self.cluster.http, "GRPC": self.cluster.grpc, "METRICS": self.cluster.metrics_url,
                "FLOTILLA_URL": self.cluster.http, "XDG_STATE_HOME": self.cluster.state.name,
                "LAUNCHER": self.launcher or ""}

    def _ours(self, text):
        """Of addresses that the page has from its ready line."""
        if not self.cluster:
            return text
        port = self.cluster.http.rsplit(":", 1)[1]
        for theirs, ours in {"127.0.0.1:50051": self.cluster.grpc, "127.0.0.1:8000": f"127.0.0.1:{port}",
                             "localhost:8000": f"localhost:{port}",
                             "http://127.0.0.1:9400/metrics": self.cluster.metrics_url}.items():
            text = text.replace(theirs, ours)
        return text

    def _start(self, fence):
        text = fence.text.rstrip("\n")
        text += " " + APPENDED.get(text.split(" ", 1)[0], "").format(port=free_port())
        log = self.folder / f"background-{len(self.background)}"
        with log.open("wb") as output:
            process = subprocess.Popen(["bash", "-euc", f"exec {text}"], cwd=self.folder,
                                       env=environment(self.folder, self._variables()), stdout=output, stderr=output)
        self.background.append(process)
        wait_until(lambda: process.poll() is not None or all(words in log.read_text() for words in fence.expected), 60,
                   f"{fence.expected} of {fence.text}")
        assert process.poll() is None, log.read_text()

    def stop(self):
        if self.cluster:
            assert self.cluster.stop() == 0, self.cluster.logs()
            self.cluster = None

    def close(self):
        for process in self.background:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        if self.cluster:
            self.cluster.kill()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "flotilla").symlink_to(pathlib.Path(BIN, "flotilla").resolve())
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    monkeypatch.chdir(tmp_path)  # a cluster finds what the page has made
    return tmp_path


def test_all_fences_say_what_they_are():
    faults, elsewhere = [], collections.Counter()
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        faults += faults_of(named(path), page)
        elsewhere.update(fence.detail for fence in fences_of(page) if fence.kind == "elsewhere")
    assert not faults, "\n".join(faults)
    assert elsewhere.keys() == ELSEWHERE.keys(), "a reason that no fence has"
    for reason, count in elsewhere.items():
        print(f"{count} fences are not run: {ELSEWHERE[reason]}")


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_the_page(path, folder):
    fences = fences_of(path.read_text(encoding="utf-8"))
    reader = Reader(folder)
    try:
        reader.follow(named(path), fences)
        if path.name == "quickstart.md":
            assert reader.ran["test"] > 5
            wait_until(lambda: every_worker_restarted(reader.cluster.metrics()), 20, "every worker was killed and is back")
        reader.stop()
    finally:
        reader.close()
    assert sum(reader.ran.values()) == len(fences)


def every_worker_restarted(metrics):
    restarts = [value for key, value in metrics.items() if key.startswith("flotilla_worker_restarts_total")]
    return len(restarts) > 1 and min(restarts) >= 1


def test_a_block_that_fails_is_seen(folder):
    for text in ("false\ntrue", "echo $UNKNOWN", "false | cat", "echo no"):
        with pytest.raises(AssertionError, match="exit status|not in"):
            run_block(text, ["yes"], folder, {})
    assert run_block("echo yes", ["yes"], folder, {}) == "yes\n"
    with pytest.raises(AssertionError, match="page.md:1: the page shows"):
        Reader(folder).follow("page.md", fences_of("```console\n$ echo a\nb\n```\n"))


@pytest.mark.parametrize("fence, fault", [
    ("```\nx\n```", "no language ''"), ("```sh\nls\n```", "sh alone is none of"),
    ("```sh elsewhere laziness\nls\n```", "is no reason"), ("```sh test\nls\n```", "say what is printed"),
    ("```text\n./flotilla serve\n```", "has a command"), ("```console\nls\n```", "begins with"),
    ("Then\n\n    ./flotilla serve --port 1", "an indented command"), ("Then\n\n\tclient.ask()", "indented code"),
    ("- a\n\n  curl localhost", "an indented command"), ("1. a\n    source <(flotilla completion bash)", "an indented command"),
    ("- a\n\nThen\n\n    Key: value", "indented code"),
    ("- a\n  ```sh run\n  ls\n  ```", "may be indented"),
])
def test_a_fence_that_says_nothing_is_seen(fence, fault):
    (found,) = faults_of("page.md", fence + "\n")
    assert fault in found


def test_what_is_indented_and_no_code():
    page = "- a point\n  of two lines, of `curl`\n\n      and a deep third\n\n1. one\n\n   more of one\n\n```yaml\na:\n    b: 1\n```\n"
    assert not list(faults_of("page.md", page))


def test_consoles():
    ((command, shown),) = console_parts("$ size \\\n  --more\na\n...\nd\n")
    assert command == "size \\\n  --more\n"
    assert prints(shown, "a\nb\nc\nd\n") and prints(shown, "a\nd\n")
    assert not prints(shown, "a\nb\n") and not prints(shown, "x\nd\n") and not prints(shown, "a\nbd\n")
