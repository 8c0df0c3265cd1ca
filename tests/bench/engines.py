"""Engines that benchmarks start one after the other: ours and its peers, each behind an OpenAI endpoint on a random
port of this machine, and ours without one. measure() has the figures of a load."""

import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from checkout import ROOT
from streams import Cluster, free_port
from cluster import NO_DRAFTS, children_of, pss_bytes

LOAD = os.environ.get("LOAD", str(ROOT / "../shared/bench/load.py"))
READY_TIMEOUT_S = 120
SAMPLE_S = 0.1


class PeakMemory:
    """The most that a process and its descendants held, shared pages counted once (PSS), in bytes."""

    def __init__(self, pid):
        self.bytes = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _all(self):
        pids = [self._pid]
        for pid in pids:
            pids.extend(children_of(pid))
        return pids

    def _run(self):
        while not self._end.wait(SAMPLE_S):
            with contextlib.suppress(OSError):
                self.bytes = max(self.bytes, sum(pss_bytes(pid) for pid in self._all()))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


class Running:
    """An engine that takes requests."""

    def __init__(self, url, model, pid, ready_s):
        self.url, self.model, self.pid, self.ready_s = url, model, pid, ready_s


class Server:
    """An engine with an OpenAI endpoint, which start() starts."""

    def measure(self, load, seed):
        """What the load generator printed, and the engine's peak memory and time to ready."""
        with self.start(load) as running, PeakMemory(running.pid) as memory:
            done = subprocess.run(
                [sys.executable, LOAD, running.url, "--model", running.model, "--seed", str(seed), "--concurrency",
                 str(load.clients), "--requests", str(load.requests), "--shared-prefix", str(load.shared_prefix),
                 "--in-tokens", f"{load.in_tokens}:{load.in_tokens}", "--out-tokens",
                 f"{load.out_tokens}:{load.out_tokens}"], check=True, text=True, stdout=subprocess.PIPE)
        line = json.loads(done.stdout)
        if line["ok"] != load.requests or line["err"]:
            raise SystemExit(f"error: {type(self).__name__}: {line['err']} of {load.requests} requests failed: {line['err1']}")
        return line | {"peak_mib": memory.bytes / 2**20, "ready_s": running.ready_s}


class Flotilla(Server):
    """`flotilla`, or `flotilla:FLAGS`. Without drafts, unless FLAGS have them: the others draft nothing either."""

    def __init__(self, flags, model):
        self.flags, self.model = shlex.split(flags), model

    @contextlib.contextmanager
    def start(self, load):
        flags = self.flags if NO_DRAFTS[0] in self.flags else self.flags + NO_DRAFTS
        if load.kv_bytes_per_token:
            tokens = load.clients * load.context
            flags = flags + ["--kv-cache-memory", str(tokens * load.kv_bytes_per_token), "--context-length", str(load.context),
                      "--max-running-requests", str(load.clients)]
        with Cluster(*flags, model=self.model, disturbed=True) as cluster:  # its warnings are no error here
            yield Running(cluster.http, cluster.model_id, cluster.process.pid, cluster.ready_s)


class Offline:
    """`offline`, or `offline:FLAGS`: `flotilla bench offline`, which is no server."""

    def __init__(self, flags, model):
        self.flags, self.model = shlex.split(flags), model

    def measure(self, load, seed):
        argv = [os.environ["FLOTILLA_BIN_DIR"] + "/flotilla", "bench", "offline", "--json", "--model", self.model,
                "--requests", load.requests, "--input-len", load.in_tokens + load.shared_prefix, "--output-len",
                load.out_tokens, "--max-running-requests", load.clients, "--temperature", 0, "--seed", seed, *self.flags,
                *([] if NO_DRAFTS[0] in self.flags else NO_DRAFTS)]
        begin = time.monotonic()
        with subprocess.Popen([str(arg) for arg in argv], stdout=subprocess.PIPE, text=True) as run, PeakMemory(run.pid) as memory:
            figures = json.loads(run.stdout.read())
        ttft, between = figures["time_to_first_token_seconds"], figures["inter_token_latency_seconds"]
        return {"out_tok_s": figures["output_tokens_per_second"], "ttft_p50": 1e3 * ttft["p50"], "ttft_p99": 1e3 * ttft["p99"],
                "itl_p50": 1e3 * between["p50"], "itl_p99": 1e3 * between["p99"], "peak_mib": memory.bytes / 2**20,
                "ready_s": time.monotonic() - begin - figures["seconds"]}


class LlamaServer(Server):
    """`llama-server` (build_llama.sh), or `llama-server:TYPE`: the same model requantised, once."""

    def __init__(self, quant, model):
        self.bin = pathlib.Path(subprocess.run([ROOT / "tests/bench/build_llama.sh"], check=True, text=True,
                                               stdout=subprocess.PIPE).stdout.strip())
        self.model = self._requantised(model, quant) if quant else model

    def _requantised(self, model, quant):
        path = self.bin / f"{pathlib.Path(model).stem}.{quant}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            subprocess.run([self.bin / "llama-quantize", "--allow-requantize", model, part, quant], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(path)
        return path

    @contextlib.contextmanager
    def start(self, load):
        port = free_port()
        argv = [self.bin / "llama-server", "-m", self.model, "-t", str(os.cpu_count()), "-np", str(load.clients),
                "-c", str(load.clients * load.context), "--host", "127.0.0.1", "--port", str(port)]
        with peer([str(arg) for arg in argv], f"http://127.0.0.1:{port}") as running:
            yield running


class OpenVino(Server):
    """`openvino`: GenAI's continuous batching (openvino_server.py), in an environment made once."""

    PACKAGES = ["openvino-genai==2026.4.1", "aiohttp"]

    def __init__(self, argument, model):
        if argument:
            raise SystemExit("error: the engine openvino takes no argument")
        self.model = model
        venv = ROOT / ".cache/openvino-venv"
        self.python = venv / "bin/python"
        if not (venv / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([self.python, "-m", "pip", "install", "--quiet", *self.PACKAGES], check=True)
            (venv / "complete").touch()

    @contextlib.contextmanager
    def start(self, _):
        port = free_port()
        server = [self.python, ROOT / "tests/bench/openvino_server.py", self.model, str(port)]
        with peer([str(arg) for arg in server], f"http://127.0.0.1:{port}") as running:
            yield running


def healthy(url):
    with contextlib.suppress(OSError, urllib.error.HTTPError):
        return urllib.request.urlopen(url + "/health", timeout=1).status == 200
    return False


@contextlib.contextmanager
def peer(argv, url, ready=healthy):
    """Another's server, as soon as it is ready."""
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        server = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            while not ready(url):
                if server.poll() is not None or time.monotonic() - begin > READY_TIMEOUT_S:
                    log.seek(0)
                    raise SystemExit(f"error: {argv[0]} did not become ready:\n{log.read()[-4000:].decode()}")
                time.sleep(0.01)
            yield Running(url, "m", server.pid, time.monotonic() - begin)
        finally:
            server.terminate()
            server.wait(30)


KINDS = {"flotilla": Flotilla, "offline": Offline, "llama-server": LlamaServer, "openvino": OpenVino}


def make_engine(spec, model):
    """Of KIND or KIND:ARGUMENT."""
    kind, _, argument = spec.partition(":")
    if kind not in KINDS:
        raise SystemExit(f"error: engine '{spec}' is unknown; use {', '.join(KINDS)}, or one of them with :ARGUMENT")
    return KINDS[kind](argument, model)
