"""Idempotency-Key, with two routers over two replicas: a request is computed once, whoever asks again and
whichever router, client or replica goes away meanwhile."""

import http.client
import json
import os
import signal
import threading

import pytest
from cluster import Cluster, wait_until
from router import Router

TOKENS = 400
LONG = 1500  # still runs after what a test does meanwhile, however fast the machine is
ENGINE = ["--tp", "1", "--kv-cache-memory", "256MiB"]
BEGUN, RUNNING, FINISHED, CONFLICT, ALONE = (
    f'outcome="{outcome}"' for outcome in ("begun", "attached_running", "attached_finished", "conflict", "alone"))


def count(engine, *outcomes):
    return sum(value for name, value in engine.metrics().items()
               if name.startswith("flotilla_scheduler_keyed_requests_total") and
               any(outcome in name for outcome in outcomes))


def start_router(engines):
    router = Router([engine.grpc for engine in engines])
    wait_until(lambda: router.ready_replicas() == len(engines), 30, "the router knows all replicas")
    return router


class Fleet:
    def __init__(self):
        self.engines = [Cluster(*ENGINE, command="engine", disturbed=True) for _ in range(2)]
        self.routers = [start_router(self.engines) for _ in range(2)]

    def stop(self):
        assert [router.stop() for router in self.routers] == [0, 0]
        for engine in self.engines:
            engine.stop()

    def count(self, *outcomes):
        return sum(count(engine, *outcomes) for engine in self.engines)

    def running(self):
        """The engine that runs the only request, and the other one."""
        return sorted(self.engines, key=lambda engine: -engine.metric("flotilla_scheduler_requests_running"))

    def all_ready(self):
        wait_until(lambda: all(router.ready_replicas() == len(self.engines) for router in self.routers), 60,
                   "both replicas are ready")

    def value(self, metric):
        return sum(engine.metric(metric) for engine in self.engines)

    def generated(self):
        return self.value("flotilla_scheduler_generation_tokens_total")


@pytest.fixture(scope="module")
def fleet():
    fleet = Fleet()
    yield fleet
    fleet.stop()


class Call:
    """One keyed streaming completion."""

    def __init__(self, router, key, **body):
        self.connection = http.client.HTTPConnection("127.0.0.1", router.http, timeout=120)
        body = {"model": "SmolLM2-135M-Instruct", "prompt": f"Once upon a time, {key}", "max_tokens": TOKENS,
                "temperature": 0.8, "ignore_eos": True, "stream": True} | body
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        self.connection.request("POST", "/v1/completions", json.dumps(body), headers)
        self.text = ""
        self.logprobs = []

    def answer(self):
        self.response = self.connection.getresponse()
        return self.response

    def pieces(self):
        assert self.answer().status == 200, self.response.read()
        for line in self.response:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                assert "choices" in piece, piece
                choice = piece["choices"][0]
                self.text += choice["text"]
                self.logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
                yield piece

    def whole(self):
        for _ in self.pieces():
            pass
        return self.text

    def read(self):
        """whole, meanwhile; join tells when."""
        thread = threading.Thread(target=self.whole)
        thread.start()
        return thread

    def leave(self):
        self.connection.sock.shutdown(2)
        self.connection.close()


def test_a_repeat_through_the_other_router_is_given_the_running_one(fleet):
    begun, running, attached = fleet.count(BEGUN), fleet.count(RUNNING), fleet.count(RUNNING, FINISHED)
    generated = fleet.generated()
    first = Call(fleet.routers[0], "attach")
    pieces = first.pieces()
    for _ in range(5):
        next(pieces)
    others = [Call(fleet.routers[i % 2], "attach") for i in range(4)]
    texts = []
    threads = [threading.Thread(target=lambda call=call: texts.append(call.whole())) for call in others]
    for thread in threads:
        thread.start()
    for _ in pieces:
        pass
    for thread in threads:
        thread.join(120)
    assert len(first.text) > TOKENS and texts == [first.text] * 4
    assert fleet.count(BEGUN) == begun + 1
    assert fleet.count(RUNNING, FINISHED) == attached + 4
    assert fleet.count(RUNNING) > running  # all but those that come very late
    assert fleet.generated() == generated + TOKENS
    # Ended, it is kept: with another form of the answer, at once and for nothing.
    whole = Call(fleet.routers[1], "attach", stream=False).answer()
    answer = json.loads(whole.read())
    assert answer["choices"][0]["text"] == first.text and answer["usage"]["completion_tokens"] == TOKENS
    assert fleet.generated() == generated + TOKENS
    assert fleet.value("flotilla_scheduler_keyed_results") > 0
    assert fleet.value("flotilla_scheduler_keyed_result_bytes") > TOKENS


def test_it_outlives_its_client(fleet):
    generated, attached = fleet.generated(), fleet.count(RUNNING, FINISHED)
    call = Call(fleet.routers[0], "leave")
    pieces = call.pieces()
    for _ in range(3):
        next(pieces)
    call.leave()
    wait_until(lambda: fleet.generated() == generated + TOKENS, 60, "it was computed to its end")
    text = Call(fleet.routers[1], "leave").whole()
    assert text.startswith(call.text) and len(text) > len(call.text)
    assert fleet.count(RUNNING, FINISHED) == attached + 1 and fleet.generated() == generated + TOKENS


def test_without_a_key_it_ends_with_its_client(fleet):
    generated = fleet.generated()
    call = Call(fleet.routers[0], "", max_tokens=2000)
    next(call.pieces())
    call.leave()
    wait_until(lambda: all(engine.metric("flotilla_scheduler_requests_running") == 0 for engine in fleet.engines), 60,
               "it has ended")
    assert fleet.generated() < generated + 2000


def test_a_key_stands_for_one_request(fleet):
    Call(fleet.routers[0], "conflict", max_tokens=4).whole()
    conflicts = fleet.count(CONFLICT)
    for router in fleet.routers:
        refused = Call(router, "conflict", max_tokens=5).answer()
        error = json.loads(refused.read())["error"]
        assert refused.status == 422 and error["param"] == "idempotency_key", error
    assert fleet.count(CONFLICT) == conflicts + 2


def test_a_killed_router_loses_nothing(fleet):
    generated = fleet.generated()
    router = start_router(fleet.engines)
    call = Call(router, "router")
    pieces = call.pieces()
    for _ in range(3):
        next(pieces)
    router.kill()
    text = Call(fleet.routers[0], "router").whole()
    assert text.startswith(call.text) and len(text) > TOKENS
    assert fleet.generated() == generated + TOKENS


def test_a_killed_replica_changes_nothing(fleet):
    """What it had is computed again elsewhere, for all who wait: the same text."""
    undisturbed = Call(fleet.routers[0], "", prompt="Once upon a time, replica", seed=5).whole()
    calls = [Call(fleet.routers[i], "replica", seed=5) for i in range(2)]
    texts = {}

    def read(i):
        texts[i] = calls[i].whole()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(call.text) > 20 for call in calls), 60, "both have begun")
    at = max(fleet.engines, key=lambda engine: engine.metric("flotilla_scheduler_requests_running"))
    os.kill(at.pids("scheduler")[0], signal.SIGKILL)
    for thread in threads:
        thread.join(120)
    assert texts == {0: undisturbed, 1: undisturbed}


@pytest.mark.parametrize("logprobs", [None, 2])
def test_where_it_went_on_it_is_given_to_who_asks_again(fleet, logprobs):
    fleet.all_ready()
    body = {"prompt": "Once upon a time, failover", "seed": 9, "logprobs": logprobs, "max_tokens": LONG}
    undisturbed = Call(fleet.routers[0], "", **body)
    undisturbed.whole()
    first = Call(fleet.routers[0], f"failover-{logprobs}", **body)
    pieces = first.pieces()
    for _ in range(20):
        next(pieces)
    at, other = fleet.running()
    begun, attached, alone = count(other, BEGUN), count(other, RUNNING, FINISHED), count(other, ALONE)
    os.kill(at.pids("scheduler")[0], signal.SIGKILL)
    wait_until(lambda: count(other, BEGUN) == begun + 1, 60, "it goes on at the other replica")
    repeats = [Call(router, f"failover-{logprobs}", **body) for router in fleet.routers]
    threads = [repeat.read() for repeat in repeats]
    for _ in pieces:
        pass
    for thread in threads:
        thread.join(120)
    # Also once the first replica is back, which is asked as well.
    fleet.all_ready()
    repeats += [Call(router, f"failover-{logprobs}", **body) for router in fleet.routers]
    for repeat in repeats[2:]:
        repeat.whole()
    assert [call.text for call in [first, *repeats]] == [undisturbed.text] * 5
    assert [call.logprobs for call in [first, *repeats]] == [undisturbed.logprobs] * 5
    assert count(other, BEGUN) == begun + 1 and count(other, ALONE) == alone
    assert count(other, RUNNING, FINISHED) == attached + 4
    assert count(at, BEGUN, RUNNING, FINISHED, ALONE) == 0, "nothing was asked of it since it came back"


def test_a_draining_replica_is_asked_again():
    fleet = Fleet()
    try:
        call = Call(fleet.routers[0], "drain", max_tokens=LONG)
        pieces = call.pieces()
        for _ in range(5):
            next(pieces)
        at, other = fleet.running()
        at.process.terminate()
        wait_until(lambda: [router.ready_replicas() for router in fleet.routers] == [1, 1], 30, "it drains")
        repeats = [Call(router, "drain", max_tokens=LONG) for router in fleet.routers]
        threads = [repeat.read() for repeat in repeats]
        for _ in pieces:
            pass
        for thread in threads:
            thread.join(120)
        assert at.process.wait(60) == 0
        assert len(call.text) > TOKENS and [repeat.text for repeat in repeats] == [call.text] * 2
        assert count(other, BEGUN) == 0 and other.metric("flotilla_scheduler_generation_tokens_total") == 0
    finally:
        for router in fleet.routers:
            router.kill()
        for engine in fleet.engines:
            engine.stop()
