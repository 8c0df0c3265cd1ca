"""Clients that share a prefix and arrive together at a cold cluster, with the prefix cache and without.

  python tests/bench/shared_prefix.py [--clients 64] [--prefix 256] [--own 128] [--output 64] [--runs 3]

The limits: prompt tokens read from the cache at least 95 % of (clients - 1) x prefix; output tokens a
second at least 1.8 times of those with --disable-radix-cache, median of the runs, which take turns. Needs
FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR. The exit status is 1 if a limit is missed.
"""

import argparse
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from streams import NO_DRAFTS, Cluster, prompt_of

MIN_HITS, MIN_SPEED = 0.95, 1.8


def run(flags, args):
    """Output tokens a second, and cached prompt tokens as a share of what could be."""
    rng = random.Random(11)
    prefix = prompt_of(rng, args.prefix)
    bodies = [{"prompt": prefix + prompt_of(rng, args.own), "max_tokens": args.output, "temperature": 0,
               "ignore_eos": True} for _ in range(args.clients)]
    with Cluster("--kv-cache-memory", "1GiB", *NO_DRAFTS, *flags) as cluster, ThreadPoolExecutor(args.clients) as pool:
        cluster.complete(prompt=prompt_of(rng, 8), max_tokens=4)  # threads and code are warm, the cache is not
        cached = cluster.metric("flotilla_scheduler_cached_tokens_total")
        begin = time.monotonic()
        answers = list(pool.map(lambda body: cluster.complete(**body), bodies))
        seconds = time.monotonic() - begin
        cached = cluster.metric("flotilla_scheduler_cached_tokens_total") - cached
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert tokens == args.clients * args.output
    return tokens / seconds, cached / ((args.clients - 1) * args.prefix)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=256)
    parser.add_argument("--own", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    runs = [(run([], args), run(["--disable-radix-cache"], args)) for _ in range(args.runs)]
    hits = min(on[1] for on, _ in runs)
    on, off = (statistics.median(pair[i][0] for pair in runs) for i in (0, 1))
    print(f"{args.clients} clients, {args.prefix} shared + {args.own} own tokens, {args.output} out: "
          f"hits {100 * hits:.1f} % of the possible (limit {100 * MIN_HITS:.0f} %); {on:.1f} tok/s, without the "
          f"cache {off:.1f}: {on / off:.2f} x (limit {MIN_SPEED})")
    return 0 if hits >= MIN_HITS and on / off >= MIN_SPEED else 1


if __name__ == "__main__":
    sys.exit(main())
