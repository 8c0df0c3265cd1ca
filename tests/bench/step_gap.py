"""How long the workers wait between two steps, with overlap and without, in one run.

  python tests/bench/step_gap.py [--clients 32] [--requests 96]

Loads a cluster, kills its scheduler, and takes the steps' begins and ends from its flight recording
(`flotilla trace`). The limits with overlap: p50 at most 30 us, and all gaps at most 1 % of the steps. Needs
FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR. The exit status is 1 if a limit is missed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from streams import Cluster, prompt_of, recording_of
from cluster import BIN, NO_DRAFTS  # found by streams

MAX_P50_US = 30
MAX_SHARE = 0.01


def steps_of(flags, clients, requests):
    """[(begin, end)] in microseconds, while all clients were at work."""
    rng = random.Random(5)
    bodies = [{"prompt": prompt_of(rng, 128), "max_tokens": 64, "ignore_eos": True}
              for _ in range(requests)]
    with Cluster(*flags, *NO_DRAFTS, disturbed=True) as cluster, ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda body: cluster.complete(**body), bodies))
        trace = subprocess.run([os.path.join(BIN, "flotilla"), "trace", recording_of(cluster)],
                               check=True, capture_output=True, text=True).stdout
    events = json.loads(trace)["traceEvents"]
    steps = sorted((e["ts"], e["ts"] + e["dur"], e["args"]["rows"])
                   for e in events if e.get("name", "").startswith("step "))
    busy = [i for i, step in enumerate(steps) if step[2] >= clients * 3 // 4]
    return [step[:2] for step in steps[busy[0]: busy[-1] + 1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    args = parser.parse_args()
    print("| overlap | steps | step p50, ms | gap p50, us | gap p99, us | gaps, % of the steps |")
    print("|---|---|---|---|---|---|")
    missed = False
    for name, flags in (("on", []), ("off", ["--disable-overlap"])):
        steps = steps_of(flags, args.clients, args.requests)
        gaps = [after[0] - before[1] for before, after in zip(steps, steps[1:])]
        lengths = [end - begin for begin, end in steps]
        p50, p99 = statistics.median(gaps), sorted(gaps)[len(gaps) * 99 // 100]
        share = sum(gaps) / sum(lengths)
        print(f"| {name} | {len(steps)} | {statistics.median(lengths) / 1000:.1f} | {p50:.0f} | {p99:.0f} | "
              f"{100 * share:.2f} |", flush=True)
        missed |= name == "on" and (p50 > MAX_P50_US or share > MAX_SHARE)
    print(f"limits with overlap: p50 {MAX_P50_US} us, {100 * MAX_SHARE:.0f} %: "
          f"{'MISSED' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
