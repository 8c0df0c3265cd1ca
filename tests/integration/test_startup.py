"""A start: weights are packed once, plans are prepared before the first step.

A second start, and a worker that is replaced, find what the first one packed."""

import concurrent.futures
import os
import re

from cluster import Cluster, wait_until

PACKED = "flotilla_worker_packed_weight_bytes"
FLAGS = ["--kv-cache-memory", "384MiB", "--tp", "2", "--pack-cache-dir"]
ASKED = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


def packs(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".pack"))


def packed_bytes(cluster):
    """Of each rank."""
    return {re.search(r'rank="(\d)"', key)[1]: value
            for key, value in cluster.metrics().items() if key.startswith(PACKED + "{")}


def test_a_second_start_packs_nothing(tmp_path):
    with Cluster(*FLAGS, str(tmp_path)) as cluster:
        first = cluster.complete(**ASKED)["choices"]
        assert all(value > 10e6 for value in packed_bytes(cluster).values()), packed_bytes(cluster)
        assert len(packed_bytes(cluster)) == 2
        wait_until(lambda: len(packs(tmp_path)) == 2, 60, "both ranks' files")
    with Cluster(*FLAGS, str(tmp_path), disturbed=True) as cluster:
        assert packed_bytes(cluster) == {"0": 0, "1": 0}
        assert cluster.complete(**ASKED)["choices"] == first
        worker = cluster.pids("worker")[0]
        os.kill(worker, 9)
        wait_until(lambda: len(cluster.pids("worker")) == 2 and worker not in cluster.pids("worker"),
                   60, "another worker")
        assert cluster.complete(**ASKED)["choices"] == first
        assert packed_bytes(cluster) == {"0": 0, "1": 0}


MISSES = "flotilla_worker_plan_misses_total"


def load(cluster):
    """Steps of many sizes: prompts of several lengths at once, with and without decodes beside them."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: cluster.complete(prompt="word " * (3 + 40 * n), max_tokens=4 + n,
                                                 temperature=0.5, seed=n, logprobs=n % 4),
                      range(12)))


def test_no_step_lacks_its_plan_unless_none_was_prepared():
    flags = ["--kv-cache-memory", "384MiB"]
    with Cluster(*flags) as cluster:
        load(cluster)
        assert cluster.metric(MISSES) == 0
        assert "step=plans" in cluster.logs_text()
    with Cluster(*flags, "--disable-precompile") as cluster:
        assert cluster.metric(MISSES) == 0
        load(cluster)
        first = cluster.metric(MISSES)
        assert 2 <= first <= 14, first
        load(cluster)
        assert cluster.metric(MISSES) <= 14, "a bucket is missed once"


def test_every_stage_of_the_start_is_logged_with_its_time():
    with Cluster("--kv-cache-memory", "384MiB") as cluster:
        stages = re.findall(r"startup step=([\w-]+) seconds=[\d.e+-]+ (?:ranks|bytes)=\d+\n",
                            cluster.logs_text())
    assert stages == ["comm", "model", "weights", "warmup-profile", "kv-cache", "probe", "plans"]
