"""--device cuda on a real GPU, through all processes: one rank, and two ranks that share it over CUDA IPC.

Part of `./flotilla test --gpu`.
"""

import shutil

import pytest
from cluster import Cluster

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="skipped: no GPU, or none with a driver")
FLAGS = ["--device", "cuda", "--kv-cache-memory", "2GiB", "--context-length", "2048"]
PROMPTS = ["The capital of France is", "Once upon a time", "1, 2, 3, 4,"]


def answers(*flags):
    """(texts, logprobs) of greedy and of drawn answers, and the log."""
    with Cluster(*FLAGS, *flags) as c:
        choices = [c.complete(prompt=prompt, max_tokens=48, temperature=temperature, seed=7, logprobs=2)["choices"][0]
                   for prompt in PROMPTS for temperature in (0, 0.9)]
        assert c.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
        return [(choice["text"], choice["logprobs"]["token_logprobs"]) for choice in choices], c.logs_text()


def test_two_ranks_on_one_gpu_answer_as_one_does():
    one, log = answers()
    assert "Paris" in one[0][0]
    assert "name=cuda-sm" in log
    two, log = answers("--tp", "2", "--gpus", "0,0")
    assert 'ranks exchange by="device memory"' in log, "not over CUDA IPC"
    assert two == one, "a rank more has changed a bit"


def test_graphs_and_eager_steps_answer_alike():
    graphs, _ = answers("--graph-mode", "full")
    eager, _ = answers("--graph-mode", "none")
    assert graphs == eager
