"""Two replicas behind proxies, two routers, and streams: what the fault matrix disturbs.

The replicas are `flotilla engine`s, the routers `flotilla-router`s that reach them through a Proxy of ours, which can
cut a connection or let it trickle. A Stream is one client; with a key it asks the other router when its own is gone.
"""

import http.client
import json
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import Cluster, free_port, wait_until  # noqa: E402 - found by the line above
from router import Router  # noqa: E402

ENGINE = ["--tp", "2", "--kv-cache-memory", "128MiB", "--context-length", "2048", "--startup-timeout", "10"]
RECOVERY_S = 60


class Proxy:
    """Forwards connections to `port`, which may change."""

    def __init__(self, port):
        self.backend = port
        self.delay_s = 0.0  # before each piece that is passed on
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets, self.lock = set(), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.backend))
            except OSError:
                client.close()
                continue
            with self.lock:
                self.sockets |= {client, server}
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        hold = threading.Event()
        try:
            while data := source.recv(65536 if self.delay_s == 0 else 512):
                hold.wait(self.delay_s)
                sink.sendall(data)
        except OSError:
            pass
        self._close(source, sink)

    def _close(self, *sockets):
        with self.lock:
            self.sockets -= set(sockets)
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def cut(self):
        with self.lock:
            sockets = list(self.sockets)
        self._close(*sockets)

    def stop(self):
        self.listener.close()
        self.cut()


class Stream(threading.Thread):
    """A client's streamed completion. Without a key any error is final."""

    def __init__(self, routers, body, key=None):
        super().__init__(daemon=True)
        self.routers, self.key = routers, key
        self.body = body | {"stream": True, "stream_options": {"include_usage": True}}
        self.pieces, self.text, self.tokens, self.error = 0, "", 0, None
        self.longest_pause_s = 0.0

    def run(self):
        self.last = time.monotonic()
        for attempt in range(4 if self.key else 1):
            router = self.routers[attempt % len(self.routers)]
            self.pieces, self.text = 0, ""
            try:
                self.error = self._ask(router.http)
            except (OSError, http.client.HTTPException) as error:
                self.error = repr(error)
            if self.error is None:
                return

    def _ask(self, port):
        # With a key it is the client's part to give up on a silent router.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=8 if self.key else 120)
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": self.key} if self.key else {})
        connection.request("POST", "/v1/completions", json.dumps(self.body), headers)
        response = connection.getresponse()
        if response.status != 200:
            return response.read().decode()
        for line in response:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                if "error" in piece:
                    return line.decode()
                if piece.get("usage") is not None:
                    self.tokens = piece["usage"]["completion_tokens"]
                    continue
                self.text += piece["choices"][0]["text"]
                self.pieces += 1
                now = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now - self.last)
                self.last = now
            elif line == b"data: [DONE]\n":
                return None
        return "the stream broke off"


class Fleet:
    """`full_disk`: that all logs go to. `watchdog_s`: after which a process that stands still is replaced."""

    def __init__(self, full_disk=False, watchdog_s=2):
        self.full_disk, self.watchdog_s = full_disk, watchdog_s
        self.engines = [self._engine() for _ in range(2)]
        self.proxies = [Proxy(self._port(engine)) for engine in self.engines]
        # Half of the streams go to a replica that is just back.
        self.router_metrics = [free_port(), free_port()]
        self.routers = [Router([f"127.0.0.1:{proxy.port}" for proxy in self.proxies], "--slow-start-ms", "0",
                               "--metrics-port", str(port), log="/dev/full" if full_disk else "/dev/null")
                        for port in self.router_metrics]
        self.wait_recovered()

    def _engine(self):
        log = open("/dev/full", "w+b") if self.full_disk else None
        return Cluster(*ENGINE, "--watchdog-timeout", str(self.watchdog_s), command="engine", disturbed=True, log=log)

    @staticmethod
    def _port(engine):
        return int(engine.grpc.rsplit(":", 1)[1])

    def restart(self, number):
        """The replica's launcher has ended, or is to."""
        self.engines[number].stop()
        self.engines[number] = self._engine()
        self.proxies[number].backend = self._port(self.engines[number])

    def wait_recovered(self):
        for router in self.routers:
            if router.process.poll() is not None:
                router.start()
        for router in self.routers:
            wait_until(lambda: router.ready_replicas() == 2, RECOVERY_S, "both replicas are ready again")
        for engine in self.engines:
            wait_until(lambda: self.value(engine, "requests_running") == 0, RECOVERY_S, "nothing runs")
            assert self.value(engine, "kv_pages_unaccounted") == 0

    @staticmethod
    def value(engine, name):
        """Of a scheduler's metric; None while there is no scheduler."""
        return next((value for key, value in engine.metrics().items()
                     if key.startswith(f"flotilla_scheduler_{name}{{")), None)

    def stop(self):
        for each in self.routers + self.engines + self.proxies:
            each.stop()
