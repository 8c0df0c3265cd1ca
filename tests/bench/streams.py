"""What the benchmarks of a whole cluster share: streams with the times of their tokens, made-up prompts,
and the flight recording of a scheduler."""

import glob
import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import (  # noqa: E402, F401 - found by the line above; for who imports us
    NO_DRAFTS, Cluster, free_port, wait_until)


def prompt_of(rng, tokens):
    """Token ids that no tokenizer would make of a text, so that nothing but their number matters."""
    return rng.choices(range(1000, 40000), k=tokens)


def stream(cluster, prompt, tokens, times=None):
    """The request's begin, and the times at which pieces of the answer came: time.monotonic(). Whoever gives
    the list may look at it meanwhile."""
    connection = http.client.HTTPConnection(urlsplit(cluster.http).netloc, timeout=600)
    body = {"model": cluster.model_id, "prompt": prompt, "max_tokens": tokens, "stream": True,
            "temperature": 0, "ignore_eos": True}
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    times = [] if times is None else times
    for line in response:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    connection.close()
    return begin, times


def recording_of(cluster):
    """Kills the cluster's scheduler; the path of what it had recorded."""
    os.kill(cluster.pids("scheduler")[0], signal.SIGKILL)
    files = os.path.join(cluster.state.name, "flotilla", "*.flight")
    return wait_until(lambda: glob.glob(files), 20, "a recording")[0]
