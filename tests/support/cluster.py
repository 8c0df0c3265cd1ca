"""A real cluster for tests: starts the launcher, waits for its ready line, finds its processes.

Every cluster uses random ports and ends with its `with` block. FLOTILLA_BIN_DIR is the folder of the
built binaries, FLOTILLA_TEST_MODEL the model file; the test runner sets both.

A cluster that recovered from something is no proof that it works, so the block's end also fails on
whatever the processes logged besides plain information. A test that kills or starves them on purpose
says so with disturbed=True.
"""

import collections
import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from urllib.parse import urlsplit

BIN = os.environ.get("FLOTILLA_BIN_DIR", "build/release/bin")
SANITIZED = bool(os.environ.get("FLOTILLA_SANITIZE"))  # the binaries are: what takes how long says nothing
MODEL = os.environ.get("FLOTILLA_TEST_MODEL", "")
# The time for compiling a grammar is wall time; what is right must not depend on the machine's load.
LONG_COMPILE = f"--scheduler-flag=--grammar-timeout-ms={600_000 if SANITIZED else 60_000}"
# For benchmarks of what a step costs: how much of a text repeats is no part of it.
NO_DRAFTS = ["--speculative-num-draft-tokens", "0"]
READY_TIMEOUT_S = float(os.environ.get("FLOTILLA_READY_TIMEOUT", "120"))
STOP_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 600
PLAIN_LINE = re.compile(r"\[[\w/-]+\] \d\d:\d\d:\d\d\.\d{3} (info|debug|trace) "
                        r'|\{"ts":"[^"]+","level":"(info|debug|trace)",')


def samples_of(page):
    samples = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            samples[key] = float(value)
    return samples


def is_whole(samples):
    """Whether each process that runs has its own metrics there."""
    def processes(metric):
        return {frozenset(re.findall(r'\b(process|replica)="([^"]*)"', key)) for key, value in samples.items()
                if key.startswith(metric + "{") and value == 1}

    return processes("flotilla_launcher_process_up") <= processes("flotilla_build_info")


SANITIZER_REPORT = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer.*|runtime error: .*|CHECK failed.*")


class ClusterError(AssertionError):
    """The cluster did not start, did not stop, or complained meanwhile."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, timeout_s, what):
    """Polls `condition` until it is true; a failed wait says what was waited for. `timeout_s` is that of an idle
    machine: where other tests have the cores too, it takes longer."""
    timeout_s *= 3
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def read_proc(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def children_of(pid):
    """pid → short name of each living child of `pid`."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        stat = read_proc(entry, "stat").decode(errors="replace")
        if not stat:
            continue
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        if int(rest[1]) == pid and rest[0] != "Z":
            found[int(entry)] = name
    return found


def cpu_seconds(pid):
    """User plus system time of a process so far."""
    fields = read_proc(pid, "stat").decode().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wake_ups(pid):
    """How often the threads that a process has now have slept so far, and gone on."""
    texts = [read_proc(pid, f"task/{thread}/status").decode() for thread in os.listdir(f"/proc/{pid}/task")]
    return sum(int(count) for text in texts for count in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M))


def pss_bytes(pid, kind=""):
    """kind "_Anon": heaps and stacks alone, without mapped files and segments."""
    match = re.search(rf"^Pss{kind}:\s+(\d+) kB", read_proc(pid, "smaps_rollup").decode(), re.M)
    return int(match.group(1)) * 1024 if match else 0


class Cluster:
    """Threads: complete() and metrics() from any, each call on a connection of its own."""

    def __init__(self, *flags, command="serve", model=MODEL, disturbed=False, log=None, grpc_port=0, programs=BIN):
        assert model, "set FLOTILLA_TEST_MODEL to the default model's .gguf (./flotilla test does)"
        self.disturbed = disturbed
        self.log = log or tempfile.TemporaryFile()
        argv = [os.path.join(programs, "flotilla"), command, "--model", model, "--metrics-port", "0"]
        argv += ["--port", "0"] if command == "serve" else []
        self.state = tempfile.TemporaryDirectory()  # flight recordings
        self.process = subprocess.Popen(
            argv + ["--grpc-port", str(grpc_port), *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"XDG_STATE_HOME": self.state.name},
        )
        self.started = time.monotonic()
        self._stdout = []
        self._ready = threading.Event()
        threading.Thread(target=self._read_stdout, daemon=True).start()
        if not self._ready.wait(READY_TIMEOUT_S) or not self._stdout:
            self.kill()
            raise ClusterError(f"the cluster did not become ready:\n{self.logs()}")
        self.ready_s = time.monotonic() - self.started
        self.ready_line = self._stdout[0]
        fields = dict(part.split("=", 1) for part in self.ready_line.split()[1:] if "=" in part)
        self.http = fields.get("http", "")
        self.grpc = fields["grpc"].removeprefix("grpc://")
        self.metrics_url = fields["metrics"]

    def _read_stdout(self):
        for line in self.process.stdout:
            self._stdout.append(line.rstrip("\n"))
            if line.startswith("ready"):
                self._ready.set()
        self._ready.set()

    def logs_text(self):
        # Not by seek and read: the launcher writes at the same position of the same open file.
        descriptor = self.log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def logs(self):
        return self.logs_text()[-8000:]

    def complaints(self):
        """What the processes logged besides plain information: warnings, errors, libraries' outcries."""
        return [line for line in self.logs_text().splitlines() if not PLAIN_LINE.match(line)]

    def complete(self, **body):
        """The answer of /v1/completions."""
        return self.call("POST", "/v1/completions", {"model": self.model_id, **body})

    @functools.cached_property
    def model_id(self):
        return self.call("GET", "/v1/models")["data"][0]["id"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(urlsplit(self.http).netloc, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise ClusterError(f"{path}: HTTP {response.status}: {text[:500]}")
        return json.loads(text)

    def processes(self):
        return children_of(self.process.pid)

    def pids(self, name):
        """Pids of the cluster's processes of one kind: router, scheduler, worker, detokenizer."""
        return sorted(pid for pid, comm in self.processes().items() if comm.startswith(f"flotilla-{name}"[:15]))

    def metrics_page(self, suffix=""):
        with urllib.request.urlopen(self.metrics_url + suffix, timeout=10) as response:
            return response.read().decode()

    def metrics(self, suffix=""):
        """Samples of the merged /metrics: {'name{labels}': value}. A process that does not answer in time is left out
        of a page, so pages are asked for until each that runs is there; one that starts or is stopped is given up."""
        end = time.monotonic() + 3
        while True:
            samples = samples_of(self.metrics_page(suffix))
            if suffix or is_whole(samples) or time.monotonic() > end:
                return samples

    def metric(self, name):
        """Sum of all samples of one metric; fails if there is none."""
        values = [v for k, v in self.metrics().items() if k.split("{")[0] == name]
        assert values, f"/metrics has no {name}"
        return sum(values)

    def steps(self):
        """Steps that the workers ran, of all replicas: {"prefill": n, "decode": n, "mixed": n}."""
        found = collections.Counter()
        for key, value in self.metrics().items():
            if key.startswith("flotilla_scheduler_step_seconds_count{"):
                found[re.search(r'\bmode="([a-z]+)"', key)[1]] += int(value)
        assert len(found) == 3, f"steps of {len(found)} modes: {dict(found)}"
        return found

    def stop(self, timeout_s=STOP_TIMEOUT_S):
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.logs())
        try:
            status = self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"the cluster did not stop within {STOP_TIMEOUT_S} s of SIGTERM:\n{self.logs()}")
        if kind is not None:
            return
        if status != 0:
            raise ClusterError(f"exit status {status}:\n{self.logs()}")
        # A process that is killed may complain; none may do what these say, also where another one replaces it.
        if found := SANITIZER_REPORT.search(self.logs_text()):
            raise ClusterError(f"{found[0]}:\n{self.logs_text()[found.start():][:8000]}")
        if not self.disturbed and (complaints := self.complaints()):
            raise ClusterError("\n".join(["the processes complained:", *complaints[:20]]))
