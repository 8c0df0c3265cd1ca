"""shortest_queue: while one replica is busy, every short request goes to the other."""

import openai
from cluster import Cluster, wait_until


def succeeded(cluster):
    out = {}
    for key, value in cluster.metrics().items():
        if key.startswith("flotilla_scheduler_request_success_total"):
            replica = key.split('replica="')[1].split('"')[0]
            out[replica] = out.get(replica, 0) + value
    return out


def running(cluster):
    return {
        key.split('replica="')[1].split('"')[0]: value
        for key, value in cluster.metrics().items()
        if key.startswith("flotilla_scheduler_requests_running")
    }


def test_short_requests_avoid_the_busy_replica():
    with Cluster("--replicas", "2", "--tp", "1", "--policy", "shortest_queue", "--kv-cache-memory", "512MiB") as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        busy = client.completions.create(
            model=model, prompt="word " * 1500, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(busy))
        wait_until(lambda: sorted(running(c).values()) == [0, 1], 20, "one replica runs the long request")
        busy_replica = max(running(c), key=running(c).get)
        before = succeeded(c)
        for i in range(20):
            client.completions.create(model=model, prompt=f"Number {i}", max_tokens=1)
        after = succeeded(c)
        gained = {r: after.get(r, 0) - before.get(r, 0) for r in running(c)}
        assert gained.pop(busy_replica) == 0
        assert list(gained.values()) == [20]
        busy.close()
