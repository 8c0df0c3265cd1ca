"""Hostile requests beside ordinary streams: each gets its documented answer, and the streams notice nothing."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import openai
import pytest

from cluster import SANITIZED, Cluster
from hostile_requests import LIST, Target
from test_grpc_client import Reflected

STREAMS = 8
TOKENS = 1000
MOST_P99_RATIO = 1.5
MOST_MEASUREMENTS = 6


@pytest.fixture(scope="module")
def cluster():
    flags = ["--kv-cache-memory", "512MiB", "--router-flag=--header-timeout-ms=5000",
             "--router-flag=--body-timeout-ms=5000"]
    with Cluster(*flags) as c:
        yield c


@pytest.fixture(scope="module")
def target(cluster):
    client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none")
    address = urlsplit(cluster.http)
    return Target(address.hostname, address.port, client.models.list().data[0].id, Reflected(cluster.grpc))


def stream(cluster, target, i):
    """(text, seconds between its chunks)"""
    client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300)
    chunks, times = [], []
    for chunk in client.completions.create(
            model=target.model, prompt=f"Story number {i}:", max_tokens=TOKENS, temperature=0.7, seed=i, stream=True,
            extra_body={"ignore_eos": True}):
        times.append(time.perf_counter())
        chunks.append(chunk.choices[0].text)
    return "".join(chunks), [b - a for a, b in zip(times, times[1:])]


def run_streams(cluster, target):
    """Texts, and the 99th percentile of the time between two chunks."""
    with ThreadPoolExecutor(STREAMS) as pool:
        results = list(pool.map(lambda i: stream(cluster, target, i), range(STREAMS)))
    gaps = sorted(gap for _, all_gaps in results for gap in all_gaps)
    return [text for text, _ in results], gaps[int(len(gaps) * 0.99)]


@contextlib.contextmanager
def attacked(target):
    """Meanwhile hostile_requests.py does its work; yields what becomes its result."""
    script = pathlib.Path(__file__).parent / "hostile_requests.py"
    process = subprocess.Popen(
        [sys.executable, str(script), target.host, str(target.port), target.model, target.rpc.address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    result = {}
    try:
        assert process.stdout.readline() == "ready\n"
        yield result
        output, _ = process.communicate("stop\n", timeout=120)
        assert process.returncode == 0
        result.update(json.loads(output))
    finally:
        process.kill()
        process.wait()


def test_each_gets_its_answer_and_streams_go_on(cluster, target):
    assert len(LIST) >= 50
    run_streams(cluster, target)  # warms up
    quiet, disturbed = [], []
    # What shares this machine may disturb one measurement; what the requests do is in each.
    while not quiet or (len(quiet) < MOST_MEASUREMENTS and min(disturbed) / min(quiet) > MOST_P99_RATIO
                        and not SANITIZED):
        texts, quiet_p99 = run_streams(cluster, target)
        with attacked(target) as result:
            attacked_texts, attacked_p99 = run_streams(cluster, target)
        quiet.append(quiet_p99)
        disturbed.append(attacked_p99)
        print(f"\n{len(LIST)} hostile requests, {result['meanwhile']} of them in {result['rounds']} rounds meanwhile; p99 "
              f"between chunks {quiet_p99 * 1e3:.1f} ms alone, {attacked_p99 * 1e3:.1f} ms meanwhile")
        assert not result["wrong"], "\n".join(result["wrong"])
        assert attacked_texts == texts, "byte for byte"
        assert result["meanwhile"] >= 50, "the streams met them"
    if not SANITIZED:
        assert min(disturbed) / min(quiet) <= MOST_P99_RATIO, (quiet, disturbed)
    restarts = {name: value for name, value in cluster.metrics().items() if "restarts_total" in name}
    assert restarts and not any(restarts.values()), restarts
