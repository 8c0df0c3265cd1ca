"""The router's admission queue: of more requests than may run all are answered, the highest priority first."""

import http.client
import json
import threading
from urllib.parse import urlsplit

from cluster import Cluster, wait_until

PRIORITIES = [-1, 0, 5, 0, 9, -3]
DEPTH = "flotilla_router_admission_queue_depth"


def post(cluster, request_id, **body):
    """A request of its own connection, whose answer is not read yet."""
    connection = http.client.HTTPConnection(urlsplit(cluster.http).netloc, timeout=600)
    body = {"model": cluster.model_id, "prompt": "Once upon a time", "ignore_eos": True} | body
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json", "X-Request-Id": request_id})
    return connection


def finished(cluster):
    """Ids of those that waited, in the order in which the router finished them."""
    requests = cluster.call("GET", "/ui/fleet.json")["requests"]
    return [request["request_id"] for request in requests if request["request_id"].startswith("queued-")]


def test_more_requests_than_may_run():
    with Cluster("--tp", "1", "--kv-cache-memory", "512MiB", "--router-flag=--max-inflight-per-replica=1",
                 f"--router-flag=--admission-queue={len(PRIORITIES)}",
                 "--router-flag=--admission-queue-timeout=600") as c:
        busy = post(c, "busy", max_tokens=2000, stream=True)
        stream = busy.getresponse()
        assert any(line.startswith(b"data: ") for line in stream)  # it runs

        ended, threads = [], []

        def ask(name, priority):
            answer = post(c, f"queued-{name}", max_tokens=16, priority=priority).getresponse()
            usage = json.loads(answer.read()).get("usage", {})
            ended.append((name, answer.status, usage.get("completion_tokens")))

        for name, priority in enumerate(PRIORITIES):
            threads.append(threading.Thread(target=ask, args=(name, priority)))
            threads[-1].start()
            wait_until(lambda: c.metric(DEPTH) == name + 1, 20, f"request {name} waits")

        refused = post(c, "refused", max_tokens=1).getresponse()
        error = json.loads(refused.read())["error"]
        assert refused.status == 429, error
        assert error["type"] == "rate_limit_error"
        # Nobody has left the queue since the first came.
        assert 1 <= int(refused.headers["Retry-After"]) <= 60

        stream.close()
        busy.close()  # its place is free
        for thread in threads:
            thread.join()
        assert sorted(ended) == [(name, 200, 16) for name in range(len(PRIORITIES))]
        by_rule = sorted(range(len(PRIORITIES)), key=lambda name: (-PRIORITIES[name], name))
        assert finished(c) == [f"queued-{name}" for name in by_rule]

        metrics = c.metrics()
        assert metrics[DEPTH] == 0
        assert metrics["flotilla_router_admission_wait_seconds_count"] == len(PRIORITIES)
        assert metrics['flotilla_router_rejections_total{reason="admission_full"}'] == 1
        assert c.complete(prompt="Hi", max_tokens=1)["usage"]["completion_tokens"] == 1
