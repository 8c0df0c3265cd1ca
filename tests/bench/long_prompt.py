"""What a long prompt does to those who decode, and they to it.

  python tests/bench/long_prompt.py [--clients 16] [--tokens 6000] -- --max-step-ms 25

In one cluster: the long prompt alone; `clients` streams decoding without it; and the same with the long
prompt arriving in their midst. The limits: p99 of the time between tokens at most 1.5 times of that without
the long prompt; its time to the first token at most 3.5 times that alone. Needs FLOTILLA_TEST_MODEL and
FLOTILLA_BIN_DIR. The exit status is 1 if a limit is missed.
"""

import argparse
import random
import statistics
import sys
import threading
import time

from streams import Cluster, prompt_of, stream

MAX_ITL, MAX_TTFT = 1.5, 3.5


def decode(cluster, clients, tokens, rng, meanwhile=None):
    """All gaps between tokens of `clients` streams; `meanwhile` runs when all of them decode."""
    results, threads = [], []
    for _ in range(clients):
        prompt = prompt_of(rng, 32)
        threads.append(threading.Thread(target=lambda p=prompt: results.append(stream(cluster, p, tokens))))
    generated = cluster.metric("flotilla_scheduler_generation_tokens_total")
    for thread in threads:
        thread.start()
    answer = None
    if meanwhile is not None:
        while cluster.metric("flotilla_scheduler_generation_tokens_total") < generated + 6 * clients:
            time.sleep(0.02)
        answer = meanwhile()
    end = time.monotonic()
    for thread in threads:
        thread.join()
    until = end if meanwhile is not None else float("inf")
    gaps = [b - a for _, times in results for a, b in zip(times[5:], times[6:]) if b <= until]
    return gaps, answer


def p99(values):
    return sorted(values)[len(values) * 99 // 100]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("flags", nargs="*", help="for flotilla serve, behind --")
    args = parser.parse_args()
    rng = random.Random(6)

    def long_prompt():
        begin, times = stream(cluster, prompt_of(rng, args.tokens), 1)
        return times[0] - begin

    with Cluster("--kv-cache-memory", "1GiB", *args.flags) as cluster:
        decode(cluster, args.clients, 32, rng)  # warms up, and teaches what a step costs
        alone = statistics.median(long_prompt() for _ in range(3))
        before, _ = decode(cluster, args.clients, 128, rng)
        during, first = decode(cluster, args.clients, 500, rng, long_prompt)
    itl, ttft = p99(during) / p99(before), first / alone
    print(f"between tokens, {args.clients} streams: p50 {1e3 * statistics.median(before):.1f} ms, p99 "
          f"{1e3 * p99(before):.1f} ms; beside the long prompt p50 {1e3 * statistics.median(during):.1f} ms, p99 "
          f"{1e3 * p99(during):.1f} ms: {itl:.2f} x (limit {MAX_ITL})")
    print(f"first token of {args.tokens} tokens: alone {alone:.2f} s, beside {args.clients} streams "
          f"{first:.2f} s: {ttft:.2f} x (limit {MAX_TTFT})")
    return 0 if itl <= MAX_ITL and ttft <= MAX_TTFT else 1


if __name__ == "__main__":
    sys.exit(main())
