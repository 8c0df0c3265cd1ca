#!/usr/bin/env python3
"""Whole steps without a server, beside llama.cpp: tokens a second of prefills and of decodes of 1, 8 and 32 sequences.

  tests/bench/batched.py                               the default model, its own type and Q4_0
  tests/bench/batched.py --model gemma.gguf --types "" --runs 3

Ours is `flotilla bench roofline --steps` (a prefill of 512 tokens; decodes at a context of 192), theirs is
llama-batched-bench with as many threads as there are cores (prefills of 512; 64 tokens a sequence after 128). They take
turns; printed are the medians of --runs, how many times each of theirs ours is, and ours as a share of this machine's
limit. --types: of llama.cpp, comma-separated; "" is the file as it is, others are requantised once.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from checkout import DEFAULT_MODEL, ROOT

os.environ.setdefault("FLOTILLA_BIN_DIR", str(ROOT / "build/release/bin"))
os.environ.setdefault("FLOTILLA_TEST_MODEL", DEFAULT_MODEL)

from compare import machine  # noqa: E402 - reads the environment
from engines import LlamaServer  # noqa: E402

BATCHES = [1, 8, 32]
PREFILL, CONTEXT = 512, 192
ROWS = [f"prefill {PREFILL}", *(f"decode {batch} at {CONTEXT}" for batch in BATCHES)]


def ours(model):
    """row → tokens a second; row → share of the limit."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([os.environ["FLOTILLA_BIN_DIR"] + "/flotilla", "bench", "roofline", "--steps", "--model", model,
                        "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        runs = json.loads(pathlib.Path(file.name).read_text(encoding="utf-8"))["runs"]
    rows = {row["name"]: row for row in runs[0]["rows"]}  # of the best instruction set
    return {name: rows[name]["tokens_per_second"] for name in ROWS}, {name: rows[name]["share"] for name in ROWS}


def theirs(llama):
    """row → tokens a second."""
    def run(prompt, output, batches, key):
        context = max(batches) * (prompt + output)
        done = subprocess.run(
            [llama.bin / "llama-batched-bench", "-m", llama.model, "-t", str(os.cpu_count()), "-c", str(context),
             "-npp", str(prompt), "-ntg", str(output), "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"],
            check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        lines = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
        assert [line["pl"] for line in lines] == batches, done
        return [line[key] for line in lines]

    prefill = run(PREFILL, 1, [1], "speed_pp")
    return dict(zip(ROWS, prefill + run(128, CONTEXT - 128, BATCHES, "speed_tg")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--types", default=",Q4_0")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    peers = {f"llama.cpp {kind or 'as it is'}": LlamaServer(kind, args.model) for kind in args.types.split(",")}
    print(f"{machine()}; {os.path.basename(args.model)}, medians of {args.runs}")
    runs, shares = {name: [] for name in (*peers, "flotilla")}, []
    for number in range(args.runs):
        for name, llama in peers.items():
            runs[name].append(theirs(llama))
        speeds, share = ours(args.model)
        runs["flotilla"].append(speeds)
        shares.append(share)
        print(f"  run {number + 1} done", file=sys.stderr)
    median = {name: {row: statistics.median(run[row] for run in each) for row in ROWS} for name, each in runs.items()}
    print("\n| tokens a second |", " | ".join(median), "|", " | ".join(f"over {name}" for name in peers), "| of the limit |")
    print("|---|" + "---:|" * (len(median) + len(peers) + 1))
    for row in ROWS:
        ratios = [f"{median['flotilla'][row] / median[name][row]:.2f}" for name in peers]
        share = statistics.median(each[row] for each in shares)
        print(f"| {row} |", " | ".join(f"{each[row]:,.0f}" for each in median.values()), "|", " | ".join(ratios),
              f"| {100 * share:.0f} % |")


if __name__ == "__main__":
    main()
