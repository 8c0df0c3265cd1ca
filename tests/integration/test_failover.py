"""A replica dies under streams that have begun: their clients get what they would have got, byte for byte."""

import concurrent.futures
import json
import os
import random
import signal
import threading
import time

import openai
import pytest
from cluster import LONG_COMPILE, Cluster, wait_until

FULL = os.environ.get("FLOTILLA_FAILOVER") == "full"
TOKENS = 64
FLAGS = ["--tp", "1", "--kv-cache-memory", "256MiB", LONG_COMPILE]
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 20}


def body_of(i):
    """Sampled, each with something else that a stream carries."""
    extra = [
        {"logprobs": 3},
        {"frequency_penalty": 0.8, "logit_bias": {"28": 2}},
        {"n": 2},
        {"stop": [" the", "\n\n"]},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"extra_body": {"top_k": 50, "min_p": 0.02}},
    ][i % 6]
    body = {"prompt": f"Story number {i}: once upon a time", "max_tokens": TOKENS, "temperature": 0.8, "seed": i}
    body |= extra
    body["extra_body"] = {"return_token_ids": True, "ignore_eos": i % 3 == 0} | body.get("extra_body", {})
    return body


class Client:
    def __init__(self, url):
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)
        self.model = self.openai.models.list().data[0].id
        self.gaps = []  # of each stream the longest time between two pieces, in seconds

    def stream(self, body, on_piece=lambda: None):
        """All that came, by choice: text, ids, logprobs, the end."""
        choices, last, longest = {}, None, 0
        for event in self.openai.completions.create(model=self.model, stream=True, **body):
            for choice in event.choices:
                got = choices.setdefault(choice.index, {"text": "", "ids": [], "logprobs": [], "end": None})
                got["text"] += choice.text
                got["ids"] += getattr(choice, "token_ids", None) or []
                if choice.logprobs:
                    got["logprobs"] += choice.logprobs.token_logprobs
                    got.setdefault("offsets", []).extend(choice.logprobs.text_offset)
                assert got["end"] is None, "nothing follows the end"
                got["end"] = choice.finish_reason
            now = time.monotonic()
            last, longest = now, max(longest, now - (last or now))
            on_piece()
        self.gaps.append(longest)
        assert all(choice["end"] for choice in choices.values())
        return json.dumps(choices, sort_keys=True)


def share(values, part):
    return sorted(values)[int(len(values) * part)]


def kill(pid):
    os.kill(pid, signal.SIGKILL)


# What is killed again and again is started again after longer and longer pauses, up to 30 s: a cluster for so many kills
# of a process.
KILLS_OF_A_PROCESS = 7


@pytest.mark.parametrize("victim", ["scheduler", "worker", "detokenizer"])
def test_streams_outlive_a_replica(victim):
    """Two replicas, streams on both; again and again one of them loses a process."""
    rng = random.Random(victim)
    streams, kills = (32, 70) if FULL else (12, 3)
    bodies, expected, done, calm, gaps = [body_of(i) for i in range(streams)], None, 0, [], []
    while done < kills:
        with Cluster("--replicas", "2", *FLAGS, disturbed=True) as c, \
                concurrent.futures.ThreadPoolExecutor(streams) as pool:
            client = Client(c.http)
            undisturbed = list(pool.map(client.stream, bodies))
            expected = expected or undisturbed
            assert undisturbed == expected
            calm, client.gaps = calm + client.gaps, []
            for _ in range(min(2 * KILLS_OF_A_PROCESS, kills - done)):
                begun = threading.Semaphore(0)
                answers = [pool.submit(client.stream, body, begun.release) for body in bodies]
                for _ in range(rng.randrange(streams, 8 * streams)):
                    begun.acquire(timeout=60)
                pid = rng.choice(list(c.pids(victim)))
                kill(pid)
                done += 1
                assert [answer.result(300) for answer in answers] == expected, f"after kill {done}"
                wait_until(lambda: len(c.pids(victim)) == 2 and pid not in c.pids(victim), 60, f"{victim} is back")
            gaps += client.gaps
            assert c.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
            if victim == "scheduler":
                assert c.metric("flotilla_router_failovers_total") > 0
            pauses = c.metric("flotilla_router_failover_pause_seconds_count")
        print(f"{done} kills, {pauses:.0f} failovers' pauses so far in this cluster")
    print(f"a stream's longest time between pieces: p50 {share(gaps, .5):.2f} s, p99 {share(gaps, .99):.2f} s, "
          f"most {max(gaps):.2f} s; undisturbed {share(calm, .5):.2f}, {share(calm, .99):.2f}, {max(calm):.2f} s")


@pytest.mark.parametrize("victim", ["worker", "detokenizer"])
def test_streams_leave_a_replica_that_recovers_for_long(victim):
    """Killed the sixth time in a row a process is started again after 4 s; nobody waits that long for it."""
    bodies = [body_of(i) for i in range(12)]
    with Cluster("--replicas", "2", *FLAGS, disturbed=True) as c, \
            concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        client = Client(c.http)
        expected = list(pool.map(client.stream, bodies))
        (pid, other), client.gaps = sorted(c.pids(victim)), []
        for _ in range(5):
            kill(pid)
            wait_until(lambda: set(c.pids(victim)) - {pid, other}, 60, f"{victim} is back")
            pid, = set(c.pids(victim)) - {other}
        wait_until(lambda: c.metric("flotilla_router_backend_healthy") == 2, 60, "both take requests")
        begun = threading.Semaphore(0)
        answers = [pool.submit(client.stream, body, begun.release) for body in bodies]
        for _ in range(2 * len(bodies)):
            begun.acquire(timeout=60)
        kill(pid)
        assert [answer.result(300) for answer in answers] == expected
        assert c.metric("flotilla_router_failovers_total") > 0, "they moved, which nothing else makes them do here"
        print(f"a stream's longest time between pieces: {max(client.gaps):.2f} s")


def test_a_kill_at_any_token():
    """One replica, whose scheduler dies when the client has k tokens; it goes on with the next one."""
    last = 4 * TOKENS  # on a fast machine a kill takes as long as some dozens of tokens
    body, expected, failovers = body_of(0) | {"seed": 77, "max_tokens": last}, None, 0
    tokens = range(1, TOKENS + 1) if FULL else (1, 2, 31, last - 1, last)
    for first in range(0, len(tokens), KILLS_OF_A_PROCESS):
        with Cluster(*FLAGS, disturbed=True) as c:
            client = Client(c.http)
            undisturbed = client.stream(body)
            expected = expected or undisturbed
            assert undisturbed == expected
            for k in tokens[first:first + KILLS_OF_A_PROCESS]:
                pieces = 0

                def on_piece():
                    nonlocal pieces
                    pieces += 1
                    if pieces == k:
                        kill(c.pids("scheduler")[0])

                assert client.stream(body, on_piece) == expected, f"killed after {k} pieces"
                wait_until(lambda: c.pids("scheduler"), 60, "the scheduler is back")
            failovers += c.metric("flotilla_router_failovers_total")
    assert failovers > len(tokens) / 2  # who has all tokens already needs none
