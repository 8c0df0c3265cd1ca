"""Routers that tests/bench/routers.py measures, ours and its peers, each in front of one backend that answers at once:
nginx for those that speak HTTP to it, mock_replica for ours."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from streams import free_port

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
from regenerate import make_venv  # noqa: E402 - found by the line above

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLOTILLA_BIN_DIR", ROOT / "build/release/bin"))
MOCK = BIN.parent / "bench/mock_replica"
READY_TIMEOUT_S = 60
# What a completion of 64 words looks like; ours is made by the router from the mock's frame.
ANSWER = ('{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"mock","choices":[{"index":0,"text":"'
          + " word" * 64 + '","logprobs":null,"finish_reason":"length"}],'
          '"usage":{"prompt_tokens":128,"completion_tokens":64,"total_tokens":192}}')
NGINX = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; client_body_buffer_size 64k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; default_type application/json;
  {content} }}
"""
# smg asks a backend what it serves before it sends it anything.
BACKEND = """server {{ listen 127.0.0.1:{port} backlog=4096;
    location = /v1/completions {{ return 200 '{answer}'; }}
    location = /v1/models {{ return 200 '{{"object":"list","data":[{{"id":"mock","object":"model","owned_by":"vllm"}}]}}'; }}
    location / {{ return 200 '{{"model_path":"mock","served_model_name":"mock","is_generation":true,"version":"1"}}'; }} }}"""
PROXY = """upstream backend {{ server 127.0.0.1:{backend}; keepalive 256; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://backend;
    proxy_http_version 1.1; proxy_set_header Connection ""; }} }}"""
HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend clients
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance leastconn
  http-reuse always
  server one 127.0.0.1:{backend}
"""


@contextlib.contextmanager
def running(argv, folder, name, **more):
    """A process that is ended with its children; what it says is in FOLDER/NAME.log."""
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen([str(part) for part in argv], stdout=more.pop("stdout", log), stderr=log,
                                   start_new_session=True, cwd=folder, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(url, prompt):
    """The completion of a prompt, text or token ids; OSError if there is none."""
    body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return response.read()


def wait_answers(url, process, log):
    """Until the URL answers a completion."""
    until = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            ask(url, "three words here")
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"routers.py: {url} does not answer ({error}); see {log}:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


class Peers:
    """Starts any of them by name: `with peers.start(NAME) as (url, pid)`. pid: the router's, of which memory and CPU time
    are measured."""

    def __init__(self, names):
        self.names = names
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flotilla-routers-"))
        needed = {"nginx": "nginx", "haproxy": "haproxy"}
        missing = [needed[name] for name in names if name in needed and not shutil.which(needed[name])]
        missing += [tool for tool in ("wrk", "nginx") if not shutil.which(tool) and tool not in missing]
        if missing:
            sys.exit(f"routers.py: {', '.join(missing)} missing: apt-get install wrk nginx-light haproxy")
        self.venv = None
        if set(names) & {"sglang-router", "smg", "vllm-router"}:
            self.venv = make_venv(ROOT / ".cache/routers-venv", pathlib.Path(__file__).with_name("routers_requirements.txt"),
                                  debian_packages=False).parent

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def _nginx(self, name, content):
        config = self.folder / f"{name}.conf"
        config.write_text(NGINX.format(folder=self.folder, content=content))
        return running(["nginx", "-c", config], self.folder, name)

    @contextlib.contextmanager
    def start(self, name, step_us=0):
        if name.startswith("flotilla"):
            with self._flotilla(name.partition(":")[2].split(), step_us) as started:
                yield started
            return
        backend, port = free_port(), free_port()
        with self._nginx("backend", BACKEND.format(port=backend, answer=ANSWER)) as process:
            wait_answers(f"http://127.0.0.1:{backend}", process, self.folder / "backend.log")
            if name == "none":
                yield f"http://127.0.0.1:{backend}", process.pid
                return
            url = f"http://127.0.0.1:{port}"
            with self._peer(name, backend, port) as router:
                wait_answers(url, router, self.folder / f"{name}.log")
                yield url, router.pid

    def _peer(self, name, backend, port):
        if name == "nginx":
            return self._nginx(name, PROXY.format(port=port, backend=backend))
        if name == "haproxy":
            config = self.folder / "haproxy.conf"
            config.write_text(HAPROXY.format(port=port, backend=backend))
            return running(["haproxy", "-f", config], self.folder, name)
        command = {"sglang-router": ["-m", "sglang_router.launch_router"], "vllm-router": ["-m", "vllm_router.launch_router"],
                   "smg": ["-m", "smg.launch_router"]}[name]
        return running([self.venv / "python", *command, "--host", "127.0.0.1", "--port", port, "--worker-urls",
                        f"http://127.0.0.1:{backend}", "--policy", "round_robin", "--prometheus-port", free_port(),
                        "--log-level", "error"], self.folder, name)

    @contextlib.contextmanager
    def _flotilla(self, flags, step_us):
        model = os.environ["FLOTILLA_TEST_MODEL"]
        socket = f"unix:{self.folder}/replica"
        with running([MOCK, "--listen", socket, "--model", model, "--step-us", step_us], self.folder, "mock",
                     stdout=subprocess.PIPE) as mock:
            assert mock.stdout.readline(), (self.folder / "mock.log").read_text()
            reading, writing = os.pipe()
            with running([BIN / "flotilla-router", "--replica", socket, "--port", 0, "--grpc-port", 0, "--notify-fd", writing,
                          "--log-level", "error", *flags], self.folder, "router", pass_fds=[writing]) as router:
                os.close(writing)
                with os.fdopen(reading) as notify:
                    line = notify.readline()
                if not line.startswith("READY "):
                    sys.exit(f"routers.py: the router did not start:\n{(self.folder / 'router.log').read_text()}")
                port = line.split("http=")[1].split()[0]
                yield f"http://127.0.0.1:{port}", router.pid

    def ping_us(self):
        """p50 of a bare message there and back on a gRPC stream over TCP of this machine."""
        with running([MOCK, "--model", os.environ["FLOTILLA_TEST_MODEL"]], self.folder, "mock", stdout=subprocess.PIPE) as mock:
            port = int(mock.stdout.readline())
            return subprocess.run([MOCK, "--ping", f"127.0.0.1:{port}"], capture_output=True, check=True, text=True).stdout
