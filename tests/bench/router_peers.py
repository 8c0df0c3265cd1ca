"""Routers that tests/bench/routers.py measures, ours and its peers, each in front of one backend that answers at once:
nginx for those that speak HTTP to it, mock_replica for ours."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from engines import ROOT, peer
from router import BIN, Router
from streams import free_port

sys.path.insert(0, str(ROOT / "tests/oracle"))
from regenerate import make_venv  # noqa: E402 - found by the line above

MOCK = pathlib.Path(BIN).parent / "bench/mock_replica"
LLM_ROUTERS = {"sglang-router": "sglang_router", "smg": "smg", "vllm-router": "vllm_router"}  # Python's names of them
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
def mock_replica(*flags):
    """One of ours that computes nothing; its port, 0 for a Unix socket."""
    with subprocess.Popen([MOCK, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline() or sys.exit("routers.py: the mock replica did not start"))
        finally:
            process.terminate()


def ask(url, prompt):
    """The completion of a prompt, text or token ids; OSError if there is none."""
    body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return response.read()


def completes(url):
    """Whether a router, and what is behind it, is there: some are healthy before."""
    with contextlib.suppress(OSError):
        return bool(ask(url, "three words here"))
    return False


class Peers:
    """Starts any of them by name: `with peers.start(NAME) as (url, pid)`. pid: the router's, of which memory and CPU time
    are measured."""

    def __init__(self, names):
        self.names = names
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flotilla-routers-"))
        missing = [tool for tool in ["wrk", "nginx", *({"haproxy"} & set(names))] if not shutil.which(tool)]
        if missing:
            sys.exit(f"routers.py: {', '.join(missing)} missing: apt-get install wrk nginx-light haproxy")
        self.venv = None
        if LLM_ROUTERS.keys() & set(names):
            self.venv = make_venv(ROOT / ".cache/routers-venv", pathlib.Path(__file__).with_name("routers_requirements.txt"),
                                  debian_packages=False).parent

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def _config(self, name, text):
        path = self.folder / f"{name}.conf"
        path.write_text(text)
        return str(path)

    def _nginx(self, name, content):
        return ["nginx", "-c", self._config(name, NGINX.format(folder=self.folder, content=content))]

    @contextlib.contextmanager
    def start(self, name, step_us=0):
        if name.startswith("flotilla"):
            address = f"unix:{self.folder}/replica"
            flags = ["--log-level", "error", *name.partition(":")[2].split()]
            with mock_replica("--listen", address, "--step-us", str(step_us)), Router([address], *flags) as router:
                yield f"http://127.0.0.1:{router.http}", router.process.pid
            return
        backend, port = free_port(), free_port()
        backend_url = f"http://127.0.0.1:{backend}"
        with peer(self._nginx("backend", BACKEND.format(port=backend, answer=ANSWER)), backend_url, completes) as nginx:
            if name == "none":
                yield backend_url, nginx.pid
                return
            with peer(self._command(name, backend, port), f"http://127.0.0.1:{port}", completes) as router:
                yield router.url, router.pid

    def _command(self, name, backend, port):
        if name == "nginx":
            return self._nginx(name, PROXY.format(port=port, backend=backend))
        if name == "haproxy":
            return ["haproxy", "-f", self._config(name, HAPROXY.format(port=port, backend=backend))]
        return [str(self.venv / "python"), "-m", f"{LLM_ROUTERS[name]}.launch_router", "--host", "127.0.0.1",
                "--port", str(port), "--worker-urls", f"http://127.0.0.1:{backend}", "--policy", "round_robin",
                "--prometheus-port", str(free_port()), "--log-level", "error"]

    def ping(self):
        """p50 and p99 of a bare message there and back on a gRPC stream over TCP of this machine, in µs."""
        with mock_replica() as port:
            ping = subprocess.run([MOCK, "--ping", f"127.0.0.1:{port}"], capture_output=True, check=True, text=True)
        return json.loads(ping.stdout)
