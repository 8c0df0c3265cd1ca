"""Thousands of requests that end before their time, in every way there is: nothing may be left of them."""

import collections
import json
import random
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import grpc
from cluster import Cluster, pss_bytes, wait_until
from test_grpc_client import Reflected

REQUESTS, WARM_UP = 10_000, 2_000
THREADS = 32
GROWTH = 2 << 20  # bytes, all processes together: 210 a request
LENGTH, ABORT, DEADLINE = 2, 3, 4  # FinishReason


class Storm:
    """Sends requests of random kinds. Threads: run() starts its own; one run at a time."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.http = urlsplit(cluster.http)
        self.rng = random.Random(17)
        # Few prompts, so that most of their KV is cached, and long ones have chunks to be cut off in.
        # Learned once: protobuf's Python makes no promise for threads that make classes at the same time.
        self.schema = Reflected(cluster.grpc)
        for message in ("GenerateRequest", "GenerateResponse", "AbortRequest", "AbortResponse"):
            self.schema.message(message)
        self.prompts = [self.rng.choices(range(1000, 40000), k=self.rng.choice([3, 20, 60, 700]))
                        for _ in range(40)]
        self.ends = collections.Counter()
        self.failures = []
        self.lock = threading.Lock()

    def run(self, count):
        jobs = [(i, self.rng.random()) for i in range(count)]
        threads = [threading.Thread(target=self._work, args=(jobs,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert self.cluster.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
            threads[0].join(0.5)
        assert not self.failures, self.failures[:5]

    def _work(self, jobs):
        client = Reflected(self.cluster.grpc, like=self.schema)
        kinds = [self._drop, self._drop, self._cancel, self._deadline, self._abort]
        while True:
            with self.lock:
                if not jobs or self.failures:
                    break
                index, seed = jobs.pop()
            rng = random.Random(seed)
            try:
                end = rng.choice(kinds)(client, rng)
                with self.lock:
                    self.ends[end] += 1
            except Exception as error:  # noqa: BLE001 - reported by run()
                self.failures.append(f"request {index}: {error!r}")
        client.channel.close()

    def _drop(self, _, rng):
        """HTTP; the connection is closed or reset after some bytes, perhaps none."""
        body = json.dumps({"model": self.cluster.model_id, "prompt": rng.choice(self.prompts), "stream": True,
                           "max_tokens": rng.randint(1, 64), "ignore_eos": True}).encode()
        with socket.create_connection((self.http.hostname, self.http.port), timeout=120) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            for _ in range(rng.randint(0, 6)):
                if b"[DONE]" in connection.recv(4096):
                    return "finished"
            if rng.random() < 0.5:  # a reset instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "dropped"

    def _request(self, client, rng):
        request = client.message("GenerateRequest")()
        request.token_ids.ids.extend(rng.choice(self.prompts))
        request.stopping.max_tokens = rng.randint(1, 64)
        request.stopping.ignore_eos = True
        return request

    def _cancel(self, client, rng):
        call = client.call("Generate", self._request(client, rng))
        messages = rng.randint(0, 8)
        for count, response in enumerate(call):
            if any(choice.finish_reason for choice in response.choices):
                return "finished"
            if count >= messages:
                break
        call.cancel()
        return "cancelled"

    def _deadline(self, client, rng):
        request = self._request(client, rng)
        request.deadline_ms = rng.randint(1, 400)
        try:
            reasons = {choice.finish_reason for r in client.call("Generate", request) for choice in r.choices}
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            return "expired"
        assert reasons & {LENGTH, DEADLINE}, reasons
        return "expired" if DEADLINE in reasons else "finished"

    def _abort(self, client, rng):
        request = self._request(client, rng)
        request.request_id = f"storm-{rng.getrandbits(60)}"
        call = client.call("Generate", request)
        messages = rng.randint(0, 4)
        reason = 0
        for count, response in enumerate(call):
            reason = max([reason, *(choice.finish_reason for choice in response.choices)])
            if count == messages:
                client.call("Abort", client.message("AbortRequest")(request_id=request.request_id))
        assert reason in (LENGTH, ABORT), reason
        return "aborted" if reason == ABORT else "finished"


def test_ten_thousand_early_ends_leave_nothing_behind():
    with Cluster("--tp", "2", "--kv-cache-memory", "192MiB") as cluster:
        storm = Storm(cluster)

        def memory_after(count):
            storm.run(count)
            wait_until(lambda: cluster.metric("flotilla_scheduler_requests_running") == 0, 30, "none runs")
            wait_until(lambda: cluster.metric("flotilla_scheduler_requests_waiting") == 0, 30, "none waits")
            wait_until(lambda: cluster.metric("flotilla_scheduler_kv_cache_usage_ratio") == 0, 10, "no page is locked")
            assert cluster.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
            # Of the model's file more pages are mapped with each token that is new, and of the segments with each that
            # is reached: both have an end.
            processes = {cluster.process.pid: "launcher", **cluster.processes()}
            return {f"{name} {pid}": pss_bytes(pid, "_Anon") for pid, name in processes.items()}

        begin = time.monotonic()
        first = memory_after(WARM_UP)
        last = memory_after(REQUESTS)
        print(f"{dict(storm.ends)} in {time.monotonic() - begin:.0f} s; anonymous memory after {WARM_UP} and after "
              f"{REQUESTS} more, KiB: " + ", ".join(f"{key} {first[key] >> 10} {last[key] >> 10}" for key in first))
        assert first.keys() == last.keys()
        grown = sum(last.values()) - sum(first.values())
        assert grown <= GROWTH, f"{grown} bytes"
        # All ways were tried, and most in time.
        early = {end: storm.ends[end] for end in ("dropped", "cancelled", "expired", "aborted")}
        assert min(early.values()) >= (REQUESTS + WARM_UP) * 0.05, storm.ends
        assert cluster.complete(prompt="The capital of France is", max_tokens=1, temperature=0)["choices"]
