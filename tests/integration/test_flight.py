"""A scheduler that dies leaves a recording of what it decided, which can be run again."""

import glob
import json
import os
import re
import signal
import subprocess
import threading

import openai
from cluster import BIN, Cluster, wait_until


def flotilla(*args):
    return subprocess.run(
        [os.path.join(BIN, "flotilla"), *args], capture_output=True, text=True, timeout=120
    )


def assert_other_endings(recording):
    """Each record is a length and its bytes, which begin with the version and the kind."""
    with open(recording, "rb") as file:
        magic, data = file.readline(), file.read()
    records = []
    while data:
        length = int.from_bytes(data[:4], "little")
        records.append(data[4:4 + length])
        data = data[4 + length:]

    def replay(changed):
        path = recording + ".changed"
        with open(path, "wb") as file:
            file.write(magic + b"".join(len(record).to_bytes(4, "little") + record for record in changed))
        return flotilla("replay", path)

    plan = 7
    last = max(i for i, record in enumerate(records) if record[1] == plan)
    answer = replay(records[:last + 1])
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "the recording ends inside PlanStep, which runs again now" in answer.stdout
    assert "PlanStep came through this time" in answer.stdout
    answer = replay([bytes([record[0] - 1]) + record[1:] for record in records])
    assert answer.returncode == 2 and "of another version of Flotilla" in answer.stderr


def test_a_killed_scheduler_can_be_replayed():
    with Cluster("--tp", "2", "--kv-cache-memory", "64MiB", "--context-length", "512",
                 "--chunked-prefill-size", "64", disturbed=True) as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=120)
        model = client.models.list().data[0].id

        def run(i):
            try:
                for _ in range(50):
                    client.completions.create(
                        model=model, prompt=f"Story {i % 3}: " + "and then " * (20 * i), max_tokens=40,
                        temperature=0.8, seed=i, extra_body={"ignore_eos": True},
                    )
                    client.embeddings.create(model=model, input=["and then " * (20 * i), "x"],
                                             extra_body={"pooling": ["last", "mean"][i % 2]})
            except openai.OpenAIError:
                pass  # the scheduler is dead, and there is no other replica

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: c.metric("flotilla_scheduler_generation_tokens_total") > 400, 60, "some work")
        assert 0 < c.metric("flotilla_scheduler_flight_recorder_seconds") < 600
        os.kill(c.pids("scheduler")[0], signal.SIGKILL)
        files = os.path.join(c.state.name, "flotilla", "r0-*.flight")
        recording = wait_until(lambda: glob.glob(files), 20, "a recording")[0]
        for thread in threads:
            thread.join(120)
        assert os.stat(recording).st_mode & 0o777 == 0o600

        replay = flotilla("replay", recording)
        assert replay.returncode == 0, replay.stdout + replay.stderr
        assert "every decision is the same" in replay.stdout
        calls, requests, steps = (int(part.split()[0]) for part in replay.stdout.splitlines()[0].split(", "))
        assert calls > steps > 30 and requests >= 8

        trace = json.loads(flotilla("trace", recording).stdout)["traceEvents"]
        assert sum(event.get("name", "").startswith("step ") for event in trace) > 30
        assert any(event.get("name") == "decode" for event in trace)
        assert sum(event.get("name", "").startswith("plan ") for event in trace) == steps
        saved = ["flight", "--flight-recorder-dir", os.path.dirname(recording)]
        assert os.path.basename(recording) in flotilla(*saved, "--list").stdout
        again = recording + ".again"
        assert flotilla(*saved, "--saved", "last", "--output", again).returncode == 0
        with open(recording, "rb") as first, open(again, "rb") as second:
            assert first.read() == second.read()
        # As if it had died in PlanStep, and as if another version had recorded it.
        assert_other_endings(recording)
        broken = recording + ".cut"
        with open(recording, "rb") as source, open(broken, "wb") as target:
            target.write(source.read()[:-3])
        answer = flotilla("replay", broken)
        assert answer.returncode == 2 and "cut off" in answer.stderr


def test_a_recording_is_taken_from_a_scheduler_that_runs():
    with Cluster("--replicas", "2", "--kv-cache-memory", "64MiB", "--context-length", "512") as c:
        for prompt in ("Once upon a time", "The capital of France is"):  # one each
            c.complete(prompt=prompt, max_tokens=20, ignore_eos=True)
        schedulers = c.pids("scheduler")
        folder = os.path.join(c.state.name, "flotilla")
        running = flotilla("flight", "--list").stdout
        several = flotilla("flight")
        assert several.returncode == 2 and "give --pid" in several.stderr
        for pid in schedulers:
            assert re.search(rf"^running r[01] pid {pid}$", running, re.M)
            path = os.path.join(c.state.name, str(pid))
            with open(path, "wb") as file:
                subprocess.run([os.path.join(BIN, "flotilla"), "flight", "--pid", str(pid)], stdout=file, check=True)
            replay = flotilla("replay", path)
            assert replay.returncode == 0 and "every decision is the same" in replay.stdout, replay.stdout + replay.stderr
            assert int(re.search(r"(\d+) steps", replay.stdout)[1]) >= 20
        assert c.pids("scheduler") == schedulers and not os.path.exists(folder)


def test_a_recording_that_has_lost_its_beginning_can_be_replayed():
    with Cluster("--tp", "2", "--kv-cache-memory", "64MiB", "--context-length", "512",
                 "--flight-recorder-size", "1MiB", disturbed=True) as c:
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=120)
        model = client.models.list().data[0].id
        bias = {str(1000 + token): -1 for token in range(1000)}  # makes records long
        answers, done = [], threading.Event()

        def run(i):
            try:
                while not done.is_set():
                    answers.append(client.completions.create(
                        model=model, prompt=f"Story {i % 3}: " + "and then " * (40 - len(answers) % 7),
                        max_tokens=1 + len(answers) % 5, temperature=0.8, seed=i, logit_bias=bias,
                        extra_body={"ignore_eos": True},
                    ))
            except openai.OpenAIError:
                pass  # the scheduler is dead, and there is no other replica

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        # Each takes 8 KiB at least: 1,000 biases of 8 bytes, and its tokens.
        wait_until(lambda: len(answers) > 200, 300, "more than the ring holds")
        done.set()  # some may not notice that the scheduler dies
        os.kill(c.pids("scheduler")[0], signal.SIGKILL)
        files = os.path.join(c.state.name, "flotilla", "r0-*.flight")
        recording = wait_until(lambda: glob.glob(files), 20, "a recording")[0]
        for thread in threads:
            thread.join(120)

        replay = flotilla("replay", recording)
        assert replay.returncode == 0, replay.stdout + replay.stderr
        assert re.search(r"it begins at a key frame; the \d+ calls before it are left out", replay.stdout)
        assert "every decision is the same" in replay.stdout
        assert sum(event.get("name", "").startswith("step ")
                   for event in json.loads(flotilla("trace", recording).stdout)["traceEvents"]) > 30
        cost = recording + ".json"
        fit = flotilla("bench", "fit", recording, "--output", cost)
        assert fit.returncode == 0, fit.stdout + fit.stderr
        simulation = flotilla("simulate", "--cost", cost, "--recording", recording, "--json")
        assert simulation.returncode == 0, simulation.stderr
        assert json.loads(simulation.stdout)["finished"] > 30


def test_a_stalled_worker_is_looked_at_and_replaced():
    with Cluster("--tp", "2", "--kv-cache-memory", "64MiB", "--context-length", "512",
                 "--watchdog-timeout", "2", disturbed=True) as c:
        body = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0.8, "seed": 3,
                "ignore_eos": True, "logprobs": 1}
        undisturbed = c.complete(**body)["choices"]
        answer = []
        thread = threading.Thread(target=lambda: answer.append(c.complete(**body)["choices"]))
        generated = c.metric("flotilla_scheduler_generation_tokens_total")
        thread.start()
        wait_until(lambda: c.metric("flotilla_scheduler_generation_tokens_total") > generated + 20, 60, "tokens")
        victim = c.pids("worker")[1]
        os.kill(victim, signal.SIGSTOP)
        thread.join(120)
        assert answer == [undisturbed]
        assert victim not in c.pids("worker")
        log = c.logs_text()
        assert re.search(rf"no heartbeat, killing it name=worker-\d pid={victim} ", log)
        assert re.search(rf"thread name=worker-\d tid={victim} thread=flotilla-worker state=T", log)
        for name in ("scheduler", "detokenizer"):
            assert re.search(rf"thread name={name} tid=\d+ thread=\S+ state=S", log)
        assert re.search(r"batch step=\d+ answered=\d+ rows=1 tokens=1 running=1 waiting=0 age_seconds=\d", log)
        assert re.search(r"ring name=steps bytes=\d+ written=\d+ reader_0=\d+_behind reader_1=\d+_behind", log)
        recording = re.search(r"flight recording saved path=(\S+)", log).group(1)
        assert flotilla("replay", recording).returncode == 0
