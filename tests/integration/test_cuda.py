"""--device cuda through all processes, with workers whose GPU is emulated: the same tokens as the CPU's reference."""

import os
import pathlib
import signal
import subprocess
import threading

import pytest
from cluster import BIN, MODEL, Cluster, wait_until

EMULATED_WORKER = pathlib.Path(BIN).parent / "tests/flotilla-worker-emulated"
# Small steps: a token takes the emulation a good part of a second.
FLAGS = ["--dtype", "float32", "--kv-cache-dtype", "float32", "--context-length", "256", "--kv-cache-memory", "32MiB",
         "--chunked-prefill-size", "16", "--max-running-requests", "2"]
BODY = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0, "logprobs": 1}


@pytest.fixture(name="programs", scope="module")
def fixture_programs(tmp_path_factory):
    """The product's programs, but for the worker."""
    folder = tmp_path_factory.mktemp("bin")
    for program in pathlib.Path(BIN).iterdir():
        (folder / program.name).symlink_to(EMULATED_WORKER if program.name == "flotilla-worker" else program.resolve())
    return str(folder)


def answer(*flags):
    with Cluster(*FLAGS, *flags) as c:
        choice = c.complete(**BODY)["choices"][0]
        assert c.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
        return choice["text"], choice["logprobs"]["token_logprobs"], c.logs_text(), c.metrics()


def test_emulated_gpus_answer_as_the_cpu_does(programs):
    text, logprobs, _, _ = answer()
    assert "Paris" in text
    one = answer("--device", "cuda", "--bin-dir", programs)
    assert one[0] == text
    assert one[1] == pytest.approx(logprobs, abs=1e-4)
    assert "name=cuda-emulated-float32-kv-float32" in one[2]
    def graphs(name, label=""):
        return [value for key, value in one[3].items() if key.startswith(name + "{") and label in key]

    assert graphs("flotilla_worker_graph_steps_total", 'graph="full"') == [4]  # each token but the first
    assert graphs("flotilla_worker_graph_steps_total", 'graph="piecewise"') == [0]
    assert graphs("flotilla_worker_graph_steps_total", 'graph="none"') == [1]
    assert graphs("flotilla_worker_graph_tokens_total") == [4]
    assert graphs("flotilla_worker_graph_padding_tokens_total") == [0]
    assert graphs("flotilla_worker_steps_ahead_total")[0] > 0, "no step was begun while another ran"
    waiting = answer("--device", "cuda", "--bin-dir", programs, "--scheduler-flag=--disable-overlap")
    assert waiting[:2] == one[:2], "steps that wait for each other have other bits"
    assert [value for key, value in waiting[3].items() if "steps_ahead" in key] == [0]
    two = answer("--device", "cuda", "--bin-dir", programs, "--tp", "2", "--gpus", "1,0")
    assert two[:2] == one[:2], "a rank more has changed a bit"
    assert two[2].count('ranks exchange by="device memory"') == 2
    ahead = [value for key, value in two[3].items() if "steps_ahead" in key]
    assert len(ahead) == 2 and min(ahead) > 0, "a rank waited for each step"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_not_noticed(programs, rank):
    body = BODY | {"max_tokens": 24, "ignore_eos": True}
    with Cluster(*FLAGS, "--device", "cuda", "--bin-dir", programs, "--tp", "2", "--gpus", "1,0", disturbed=True) as c:
        undisturbed, disturbed = c.complete(**body), []
        thread = threading.Thread(target=lambda: disturbed.append(c.complete(**body)))
        generated = c.metric("flotilla_scheduler_generation_tokens_total")
        thread.start()
        wait_until(lambda: c.metric("flotilla_scheduler_generation_tokens_total") > generated + 3, 60, "it is under way")
        pid = c.pids("worker")[rank]
        os.kill(pid, signal.SIGKILL)
        thread.join(120)
        assert [answer["choices"] for answer in disturbed] == [undisturbed["choices"]]
        wait_until(lambda: pid not in c.pids("worker") and len(c.pids("worker")) == 2, 20, "it is back")
        assert c.metric("flotilla_scheduler_kv_pages_unaccounted") == 0


def refused(*flags):
    run = subprocess.run([os.path.join(BIN, "flotilla"), "serve", "--model", MODEL, "--port", "0", "--grpc-port", "0",
                          "--metrics-port", "0", *flags], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode != 0 and "ready" not in run.stdout
    return run.stderr


def test_what_is_not_there_is_said_in_words(programs):
    assert "--device cuda: this build has no CUDA; ./flotilla serve --device cuda makes one" in refused("--device", "cuda")
    emulated = ["--device", "cuda", "--bin-dir", programs]
    assert "--dtype int8: --device cuda has auto, bfloat16, float16 and float32" in refused(*emulated, "--dtype", "int8")
    assert "--gpus names 1 for 2 workers; each needs one" in refused(*emulated, "--tp", "2", "--gpus", "0")
