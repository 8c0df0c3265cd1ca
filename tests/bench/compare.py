#!/usr/bin/env python3
"""Engines under the same load on this machine, in turn and alone: tokens a second, latencies, memory, start.

  tests/bench/compare.py llama-server flotilla
  tests/bench/compare.py "flotilla:--tp 2 --threads 1" "flotilla:--tp 1 --threads 2" --clients 1 8 32
  tests/bench/compare.py llama-server llama-server:Q4_0 flotilla --clients 32 64 --in-tokens 1024 --out-tokens 128

An engine is `flotilla`, `flotilla:FLAGS`, `llama-server`, `llama-server:TYPE` (the model requantised for it; -t as
many as there are cores, a slot a client), `openvino`, or `offline`: ours without HTTP, texts and clients, all requests
given to it at once and as many running as there would be clients. For each number of clients they run in turn, --runs
times, with prompts that no run has seen before. Printed are the medians, and how many times the last engine's tokens a
second are each other's; the exit status is 1 if one of these is below --at-least. --same-kv BYTES (of a token) gives ours
as much KV cache as the others have, so that memory can be compared.

LOAD: the load generator (default ../shared/bench/load.py, beside this repository). MODEL: a GGUF file.
FLOTILLA_BIN_DIR: of our binaries (default build/release/bin).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys

from checkout import DEFAULT_MODEL, ROOT, commit

MODEL = os.environ.get("MODEL", DEFAULT_MODEL)
os.environ.setdefault("FLOTILLA_BIN_DIR", str(ROOT / "build/release/bin"))
os.environ.setdefault("FLOTILLA_TEST_MODEL", MODEL)

from engines import LOAD, make_engine  # noqa: E402 - reads the environment

COLUMNS = [("out_tok_s", "tok/s"), ("ttft_p50", "TTFT p50"), ("ttft_p99", "p99 ms"), ("itl_p50", "between p50"),
           ("itl_p99", "p99 ms"), ("peak_mib", "peak MiB"), ("ready_s", "ready s")]


@dataclasses.dataclass
class Load:
    clients: int
    in_tokens: int
    out_tokens: int
    shared_prefix: int
    kv_bytes_per_token: int
    requests: int

    @property
    def context(self):
        """Tokens of a request at most; a word may be more than one."""
        return (5 * (self.in_tokens + self.shared_prefix) // 4 + self.out_tokens + 63) // 64 * 64


def machine():
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((row.split(": ", 1)[1] for row in cpu.splitlines() if row.startswith("model name")), "?")
    isa = "AMX" if "amx_int8" in cpu else "AVX-512 VNNI" if "avx512_vnni" in cpu else "AVX2"
    return f"commit {commit()}, {name}, {os.cpu_count()} cores, {isa}, load {os.getloadavg()[0]:.1f}"


def compare(engines, load, args):
    """engine → its lines; they take turns."""
    lines = {label: [] for label in engines}
    for run in range(args.runs):
        for label, engine in engines.items():
            line = engine.measure(load, 1000 * load.clients + run) | {"label": label, "c": load.clients}
            lines[label].append(line)
            print(f"  {load.clients} clients, run {run + 1}: {label}: {line['out_tok_s']} tok/s", file=sys.stderr)
            if args.jsonl:
                with open(args.jsonl, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    return lines


def show(load, lines):
    """Prints the medians; the last engine's tokens a second over each other's."""
    medians = {label: {key: statistics.median(line[key] for line in rows) for key, _ in COLUMNS}
               for label, rows in lines.items()}
    width = max(len(label) for label in lines)
    print(f"\n{load.clients:>3} clients".ljust(width), *(f"{name:>11}" for _, name in COLUMNS), "      ratio")
    *others, last = medians
    ratios = [medians[last]["out_tok_s"] / medians[label]["out_tok_s"] for label in others]
    for label, ratio in zip(medians, [*ratios, None]):
        cells = (f"{medians[label][key]:>11.{2 if key == 'ready_s' else 1}f}" for key, _ in COLUMNS)
        print(label.ljust(width), *cells, "" if ratio is None else f"{ratio:>10.2f} x")
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", help="two or more; the last is judged")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--in-tokens", type=int, default=128, help="words of a prompt, about a token each")
    parser.add_argument("--out-tokens", type=int, default=64)
    parser.add_argument("--shared-prefix", type=int, default=0, help="words that all prompts begin with")
    parser.add_argument("--requests", type=int, default=0, help="a run; default: two a client, 8 at least")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=1.0)
    parser.add_argument("--same-kv", type=int, default=0, metavar="BYTES", help="of a token, for equal KV caches")
    parser.add_argument("--jsonl", help="append the runs' lines here, for plots.py")
    args = parser.parse_args()
    for path in (MODEL, LOAD):
        if not os.path.exists(path):
            parser.error(f"no {path}; run ./flotilla test once, or set MODEL or LOAD")
    engines = {spec: make_engine(spec, MODEL) for spec in args.engines}
    if len(engines) < 2:
        parser.error("name two engines or more")
    print(f"{machine()}; {args.in_tokens} in, {args.out_tokens} out, {args.shared_prefix} shared, "
          f"medians of {args.runs}")
    slower = False
    for clients in args.clients:
        load = Load(clients, args.in_tokens, args.out_tokens, args.shared_prefix, args.same_kv,
                    args.requests or max(2 * clients, 8))
        slower |= min(show(load, compare(engines, load, args))) < args.at_least
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
