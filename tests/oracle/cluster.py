"""A `flotilla serve` of our own: started on free ports, stopped at the end of a with block."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 600


class Cluster:
    """Threads: complete() from any, each call on a connection of its own."""

    def __init__(self, bin_dir, model, flags, log_path):
        command = [os.path.join(bin_dir, "flotilla"), "serve", "--model", model, "--port", "0",
                   "--grpc-port", "0", "--metrics-port", "0", *flags]
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.address = None

    def __enter__(self):
        # The timer ends a launcher that never says `ready`; readline then sees the end of the file.
        timer = threading.Timer(START_TIMEOUT_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line.startswith("ready "):
            self.__exit__(None, None, None)
            raise RuntimeError(f"the cluster did not start: {line.strip()}\n{self.log_tail()}")
        urls = dict(word.split("=", 1) for word in line.split()[1:])
        self.address = urlsplit(urls["http"]).netloc
        self.model = self._call("GET", "/v1/models", None)["data"][0]["id"]
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            print(f"the cluster did not stop within {STOP_TIMEOUT_S} s", file=sys.stderr)
        self.process.stdout.close()

    def log_tail(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-30:])

    def complaints(self):
        """Warnings and errors in the processes' logs: a run that recovered from one is no proof."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return [line.strip() for line in log if " warning " in line or " error " in line]

    def complete(self, **body):
        return self._call("POST", "/v1/completions", {"model": self.model, **body})

    def _call(self, method, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path}: HTTP {response.status}: {text[:500]}")
        return json.loads(text)
