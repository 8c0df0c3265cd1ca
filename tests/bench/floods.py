#!/usr/bin/env python3
"""Clients that behave beside those that do not: latencies and the router's memory, with and without each flood.

  tests/bench/floods.py                                all floods
  tests/bench/floods.py half_open --seconds 30 --check one of them; exit status 1 if a limit is missed

Four clients send a request every 25 ms each over kept connections (128 token ids, 64 tokens out, by a replica that
computes nothing). A flood is a process of its own that runs only when a core has nothing else to do, since others
would flood from machines of their own:

  half_open      10,000 connections that send half a header, and a byte more every other second
  slow_bodies    2,000 requests that announce a megabyte and send a byte of it a second
  slow_readers   500 streams of 4,000 tokens that nobody reads
  body_flood     16 connections that send bodies of 8 MB as fast as they are taken
  h2_resets      4 HTTP/2 connections on the gRPC port that open calls and reset them at once

Connections that the router closes are opened again, 2,000 a second at most. Limits: the p99 during a flood at most twice that without; the
router's memory at most the limit of deploy/base, 1 GiB.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from checkout import DEFAULT_MODEL, commit

os.environ.setdefault("FLOTILLA_TEST_MODEL", DEFAULT_MODEL)
from router_peers import mock_replica  # noqa: E402 - reads the environment
from cluster import pss_bytes  # noqa: E402
from router import Router  # noqa: E402

CLIENTS, PERIOD_S = 4, 0.025
MOST_RATIO, MOST_BYTES = 2.0, 1 << 30
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def request_of(fields):
    body = json.dumps({"model": "mock", **fields}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


# --- Floods: each runs until SIGTERM and returns what it did -----------------------------------------------------

class Trickle:
    """Many connections that each send `first`, and then `more` every `period_s`, if there is any. Never reads more than
    it takes to see that it was closed, unless `reads` is false: then not even that."""

    def __init__(self, port, count, first, more=b"", period_s=1.0, reads=True):
        self.port, self.count, self.first, self.more, self.period_s, self.reads = port, count, first, more, period_s, reads
        self.selector, self.open = selectors.DefaultSelector(), {}
        self.opened = self.closed = self.most = 0

    def run(self, stopped):
        while not stopped.is_set():
            begin = time.monotonic()
            for _ in range(min(20, self.count - len(self.open))):
                self.add()
            self.look(begin)
            self.most = max(self.most, len(self.open))
            time.sleep(max(0.0, 0.01 - (time.monotonic() - begin)))
        return {"opened": self.opened, "closed by the router": self.closed, "most at once": self.most}

    def add(self):
        each = socket.socket()
        if not self.reads:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.settimeout(1)
        with contextlib.suppress(OSError):
            each.connect(("127.0.0.1", self.port))
            each.sendall(self.first)
            each.setblocking(False)
            self.selector.register(each, selectors.EVENT_READ)
            self.open[each] = time.monotonic() + random.uniform(0, self.period_s)
            self.opened += 1
            return
        each.close()

    def look(self, now):
        if self.reads:
            for key, _ in self.selector.select(0):
                with contextlib.suppress(BlockingIOError):
                    if not self.receive(key.fileobj):
                        self.drop(key.fileobj)
        for each, due in list(self.open.items()):
            if due > now:
                continue
            self.open[each] = now + self.period_s
            try:
                if self.more:
                    each.send(self.more)
                elif not self.reads and each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x01":
                    self.drop(each)  # no longer established
            except BlockingIOError:
                pass
            except OSError:
                self.drop(each)

    @staticmethod
    def receive(each):
        try:
            return each.recv(4096)
        except ConnectionError:
            return b""

    def drop(self, each):
        self.selector.unregister(each)
        del self.open[each]
        each.close()
        self.closed += 1


def half_open(ports, stopped):
    return Trickle(ports[0], 10_000, HEAD[:60], b"x", 2.0).run(stopped)


def slow_bodies(ports, stopped):
    return Trickle(ports[0], 2_000, HEAD + b"Content-Length: 1000000\r\n\r\n{", b" ", 1.0).run(stopped)


def slow_readers(ports, stopped):
    first = request_of({"prompt": [1000] * 128, "max_tokens": 4000, "stream": True})
    return Trickle(ports[0], 500, first, reads=False).run(stopped)


def in_threads(count, work, stopped):
    """work() in so many threads, again and again, an OSError notwithstanding; it yields what it has done."""
    done, connections = [0] * count, [0] * count

    def repeat(i):
        while not stopped.is_set():
            connections[i] += 1
            with contextlib.suppress(OSError):
                for more in work():
                    done[i] += more
                    if stopped.is_set():
                        return
            time.sleep(0.01)

    for i in range(count):
        threading.Thread(target=repeat, args=(i,), daemon=True).start()
    stopped.wait()
    return sum(done), sum(connections)


def body_flood(ports, stopped):
    whole = request_of({"prompt": "word " * 1_600_000, "max_tokens": 4})

    def work():
        with socket.create_connection(("127.0.0.1", ports[0]), timeout=10) as each:
            each.sendall(whole)
            yield bool(each.recv(4096))

    answered, connections = in_threads(16, work, stopped)
    return {"bodies": connections, "answered": answered, "bytes each": len(whole)}


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def h2_resets(ports, stopped):
    def text(value):
        return bytes([len(value)]) + value

    headers = (b"\x83\x86" + b"\x04" + text(b"/flotilla.v1.Inference/Generate") + b"\x01" + text(b"x")
               + b"\x0f\x10" + text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"))

    def work():
        with socket.create_connection(("127.0.0.1", ports[1]), timeout=10) as each:
            each.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
            for first in range(1, 1 << 30, 200):
                burst = b"".join(frame(1, 4, stream, headers) + frame(3, 0, stream, struct.pack(">I", 8))
                                 for stream in range(first, first + 200, 2))
                each.settimeout(10)
                each.sendall(burst)
                each.setblocking(False)
                yield 100
                with contextlib.suppress(BlockingIOError):
                    if not each.recv(1 << 20):
                        return

    opened, connections = in_threads(4, work, stopped)
    return {"calls opened and reset": opened, "connections": connections}


FLOODS = {each.__name__: each for each in (half_open, slow_bodies, slow_readers, body_flood, h2_resets)}


def flood(name, ports):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    print("ready", flush=True)
    print(json.dumps(FLOODS[name](ports, stopped)), flush=True)


# --- Clients that behave ------------------------------------------------------------------------------------------

class Latencies:
    def __init__(self, port, seconds):
        self.port, self.until, self.ms, self.failed = port, time.monotonic() + seconds, [], 0
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.ms.sort()

    def client(self, i):
        body = json.dumps({"model": "mock", "prompt": [1000 + i] * 128, "max_tokens": 64}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        due = time.monotonic() + i * PERIOD_S / CLIENTS
        while due < self.until:
            time.sleep(max(0.0, due - time.monotonic()))
            due += PERIOD_S
            begin = time.monotonic()
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                self.failed += answer.status != 200 or not answer.read()
            except (OSError, http.client.HTTPException):
                self.failed += 1
                connection.close()
            self.ms.append((time.monotonic() - begin) * 1e3)
        connection.close()

    def percentile(self, share):
        return self.ms[min(len(self.ms) - 1, int(len(self.ms) * share))]


@contextlib.contextmanager
def flooded(name, router, result):
    command = [sys.executable, __file__, "--flood", name, str(router.http), str(router.grpc)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(4)  # until it is in full swing
            yield
            process.terminate()
            result.update(json.loads(process.communicate(timeout=60)[0]))
        finally:
            process.kill()


class Memory:
    """The most that a process had, looked at twice a second."""

    def __init__(self, pid):
        self.most, self.stopped = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, args=(pid,))

    def watch(self, pid):
        while not self.stopped.wait(0.5):
            self.most = max(self.most, pss_bytes(pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def measure(names, seconds, folder):
    """Whether all limits were kept."""
    kept = True
    address = f"unix:{folder}/replica"
    print(f"commit {commit()}, {os.cpu_count()} cores, {CLIENTS} clients, a request every {PERIOD_S * 1e3:.0f} ms each")
    print(f"{'':14} {'p50, ms':>8} {'p99, ms':>8} {'max':>8} {'failed':>7} {'ratio':>6} {'router, MB':>11}")
    with mock_replica("--listen", address), Router([address], "--log-level", "error") as router:
        Latencies(router.http, 2)
        for name in names:
            before = Latencies(router.http, seconds)
            did = {}
            with Memory(router.process.pid) as memory, flooded(name, router, did):
                during = Latencies(router.http, seconds)
            ratio = during.percentile(0.99) / before.percentile(0.99)
            kept = kept and ratio <= MOST_RATIO and memory.most <= MOST_BYTES and before.failed + during.failed == 0
            for label, each, more in (("without", before, ""), (name, during, f"{ratio:6.2f} {memory.most / 1e6:11.0f}")):
                print(f"{label:14} {each.percentile(0.5):8.2f} {each.percentile(0.99):8.2f} {each.ms[-1]:8.1f} "
                      f"{each.failed:7} {more}", flush=True)
            print("  " + ", ".join(f"{key} {value:,}" for key, value in did.items()))
        assert router.stop() == 0, "the router failed"
    print(f"limits: ratio {MOST_RATIO:g}, memory {MOST_BYTES / 1e6:,.0f} MB, nobody who behaves fails: "
          + ("kept" if kept else "MISSED"))
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floods", nargs="*", default=list(FLOODS), metavar="FLOOD")
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.flood:
        flood(args.flood[0], [int(port) for port in args.flood[1:]])
        return
    if unknown := [name for name in args.floods if name not in FLOODS]:
        parser.error(f"no such flood: {', '.join(unknown)}; there are {', '.join(FLOODS)}")
    with tempfile.TemporaryDirectory() as folder:
        kept = measure(args.floods, args.seconds, folder)
    sys.exit(1 if args.check and not kept else 0)


if __name__ == "__main__":
    main()
