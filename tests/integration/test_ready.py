"""Nothing between a router and its replica may wait for a timer: a router that finds a replica serves
within a fraction of a heartbeat (1 s). Usually it takes 0.05 s."""

import re
import time

from cluster import Cluster
from router import Router

LIMIT_S = 0.5
ROUTERS = 300
CLUSTERS = 20
FLAGS = ["--tp", "1", "--kv-cache-memory", "384MiB"]


def start_router(address, log):
    """Seconds from a router's start to its ready line."""
    begin = time.monotonic()
    router = Router([address], "--log-level", "debug", log=log)
    seconds = time.monotonic() - begin
    assert router.stop() == 0
    return seconds


def test_every_router_is_ready_at_once(tmp_path):
    slow = []
    with Cluster(*FLAGS, command="engine") as engine:
        for number in range(ROUTERS):
            path = tmp_path / str(number)
            seconds = start_router(engine.grpc, path)
            if seconds > LIMIT_S:
                slow.append(f"router {number}: {seconds:.3f} s\n{path.read_text()}")
    assert not slow, "\n".join(slow)


def clock_s(pattern, text):
    """When the line was logged, in seconds of the day."""
    hours, minutes, seconds = re.search(r"(\d\d):(\d\d):(\d\d\.\d{3}) \w+ +" + pattern, text).groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def test_the_first_router_of_a_replica_is_ready_at_once():
    for _ in range(CLUSTERS):
        with Cluster(*FLAGS, "--log-level", "debug") as cluster:
            text = cluster.logs()
        waited = clock_s("router +replica ready", text) - clock_s("scheduler +router connected", text)
        assert waited % 86400 < LIMIT_S, text
