"""How well `flotilla simulate` foretells a real cluster: fitted on one trace, judged on others.

  python tests/bench/simulation.py [--runs 5]

Fits the costs of steps from a cluster's flight recording of one trace. Then two others, with other lengths:
requests that arrive at random times, and clients that each send their next request when they have an
answer. Each is run several times on a real cluster, and simulated. The limits: output tokens a second and
mean time to the first token within 15 % of the runs' median; 100,000 requests simulated within 60 s. Needs
FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR. The exit status is 1 if a limit is missed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from streams import Cluster, prompt_of, recording_of, stream
from cluster import BIN, NO_DRAFTS  # found by streams

MAX_ERROR, MAX_SECONDS = 0.15, 60
SERVE = ["--kv-cache-memory", "1GiB", *NO_DRAFTS]


def made_up(rng, requests, rate, prompt, output):
    """A trace: exponential gaps and uniform lengths around the means."""
    at, trace = 0.0, []
    for _ in range(requests):
        at += rng.expovariate(rate)
        trace.append({"at": at, "prompt_tokens": rng.randint(prompt // 4, prompt * 7 // 4),
                      "output_tokens": rng.randint(output // 4, output * 7 // 4)})
    return trace


def run(cluster, trace, clients, rng):
    """Output tokens a second and mean time to the first token of a real run."""
    prompts = [prompt_of(rng, request["prompt_tokens"]) for request in trace]
    begin = time.monotonic()
    due = threading.Event()  # never set: a wait for a time

    def send(index):
        if clients == 0:
            due.wait(max(0, begin + trace[index]["at"] - time.monotonic()))
        return stream(cluster, prompts[index], trace[index]["output_tokens"])

    with ThreadPoolExecutor(clients or len(trace)) as pool:
        answers = list(pool.map(send, range(len(trace))))
    first = [times[0] - sent for sent, times in answers]
    tokens = sum(request["output_tokens"] for request in trace)
    seconds = max(times[-1] for _, times in answers) - min(sent for sent, _ in answers)
    return tokens / seconds, statistics.mean(first)


def flotilla(*args):
    return subprocess.run([os.path.join(BIN, "flotilla"), *args], check=True, capture_output=True,
                          text=True).stdout


def simulate(cost, trace, clients):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(request) + "\n" for request in trace))
        file.flush()
        figures = json.loads(flotilla("simulate", "--cost", cost, "--trace", file.name, "--json",
                                      "--clients", str(clients)))
    assert figures["finished"] == len(trace), figures
    return figures["output_tokens_per_second"], figures["time_to_first_token_seconds"]["mean"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(13)
    teacher = made_up(rng, 160, 2.0, 200, 48)
    traces = {"open, 1.5 requests/s": (made_up(rng, 60, 1.5, 300, 64), 0),
              "closed, 16 clients": (made_up(rng, 96, 1.0, 128, 64), 16)}
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        cost = os.path.join(folder, "cost.json")
        with Cluster(*SERVE, disturbed=True) as cluster:
            run(cluster, teacher[:80], 0, rng)
            run(cluster, teacher[80:], 24, rng)
            print(flotilla("bench", "fit", recording_of(cluster), "--output", cost))
        print("| trace | | foretold | median of the runs | runs | ratio |\n|---|---|---|---|---|---|")
        for name, (trace, clients) in traces.items():
            runs = []
            for _ in range(args.runs):
                with Cluster(*SERVE) as cluster:
                    run(cluster, made_up(rng, 8, 4, 64, 8), 0, rng)  # warm
                    runs.append(run(cluster, trace, clients, rng))
            foretold = simulate(cost, trace, clients)
            for i, what in enumerate(("output tok/s", "mean TTFT, s")):
                real = statistics.median(figures[i] for figures in runs)
                ratio = foretold[i] / real
                missed |= abs(ratio - 1) > MAX_ERROR
                spread = ", ".join(f"{figures[i]:.3g}" for figures in sorted(runs, key=lambda f: f[i]))
                print(f"| {name} | {what} | {foretold[i]:.3g} | {real:.3g} | {spread} | {ratio:.2f} |", flush=True)
        begin = time.monotonic()
        flotilla("simulate", "--cost", cost, "--requests", "100000", "--rate", "2", "--prompt-tokens", "200",
                 "--output-tokens", "48")
        seconds = time.monotonic() - begin
    print(f"100,000 requests simulated in {seconds:.1f} s (limit {MAX_SECONDS}); within {100 * MAX_ERROR:.0f} % "
          f"is the limit of each ratio")
    return 1 if missed or seconds > MAX_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
