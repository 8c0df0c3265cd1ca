"""What a long prompt does to those who decode, and they to it.

  python tests/bench/long_prompt.py [--clients 16] [--tokens 6000] [--llama-server PATH] -- --max-step-ms 25

In one cluster: the long prompt alone; `clients` streams decoding without it; and the same with the long
prompt arriving in their midst. The limits: p99 of the time between tokens at most 1.5 times of that without
the long prompt; its time to the first token at most 3.5 times that alone. Needs FLOTILLA_TEST_MODEL and
FLOTILLA_BIN_DIR. The exit status is 1 if a limit is missed. With --llama-server (tests/bench/build_llama.sh says
where it is) the same is done to that, for comparison.
"""

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

from streams import NO_DRAFTS, Cluster, free_port, prompt_of, stream, wait_until

MAX_ITL, MAX_TTFT = 1.5, 3.5


@contextlib.contextmanager
def llama_server(path, clients, tokens):
    port = free_port()
    slots = clients + 1
    command = [path, "-m", os.environ["FLOTILLA_TEST_MODEL"], "-t", str(os.cpu_count()), "-np", str(slots), "-c",
               str(slots * (tokens + 256)), "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url + "/health", timeout=1).status == 200

    try:
        wait_until(answers, 60, "llama-server")
        yield SimpleNamespace(http=url, model_id="m")
    finally:
        server.terminate()
        server.wait()


def decode(cluster, clients, tokens, rng, meanwhile=None):
    """All gaps between tokens of `clients` streams; `meanwhile` runs when all of them decode."""
    pieces = [[] for _ in range(clients)]
    threads = [threading.Thread(target=stream, args=(cluster, prompt_of(rng, 32), tokens, times)) for times in pieces]
    for thread in threads:
        thread.start()
    answer = None
    if meanwhile is not None:
        wait_until(lambda: min(map(len, pieces)) >= 6, 120, "streams that decode")
        answer = meanwhile()
    end = time.monotonic()
    for thread in threads:
        thread.join()
    until = end if meanwhile is not None else float("inf")
    gaps = [b - a for times in pieces for a, b in zip(times[5:], times[6:]) if b <= until]
    return gaps, answer


def p99(values):
    return sorted(values)[len(values) * 99 // 100]


def measure(name, cluster, args):
    """The two ratios, printed too."""
    rng = random.Random(6)

    def long_prompt():
        begin, times = stream(cluster, prompt_of(rng, args.tokens), 1)
        return times[0] - begin

    decode(cluster, args.clients, 32, rng)  # warms up, and teaches what a step costs
    alone = statistics.median(long_prompt() for _ in range(3))
    before, _ = decode(cluster, args.clients, 128, rng)
    during, first = decode(cluster, args.clients, 500, rng, long_prompt)
    itl, ttft = p99(during) / p99(before), first / alone
    print(f"{name}: between tokens, {args.clients} streams: p50 {1e3 * statistics.median(before):.1f} ms, p99 "
          f"{1e3 * p99(before):.1f} ms; beside the long prompt p50 {1e3 * statistics.median(during):.1f} ms, p99 "
          f"{1e3 * p99(during):.1f} ms: {itl:.2f} x (limit {MAX_ITL})")
    print(f"{name}: first token of {args.tokens} tokens: alone {alone:.2f} s, beside {args.clients} streams "
          f"{first:.2f} s: {ttft:.2f} x (limit {MAX_TTFT})", flush=True)
    return itl, ttft


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--llama-server", help="also measure this one")
    parser.add_argument("flags", nargs="*", help="for flotilla serve, behind --")
    args = parser.parse_args()
    if args.llama_server:
        with llama_server(args.llama_server, args.clients, args.tokens) as server:
            measure("llama-server", server, args)
    with Cluster("--kv-cache-memory", "1GiB", *NO_DRAFTS, *args.flags) as cluster:
        itl, ttft = measure("Flotilla", cluster, args)
    return 0 if itl <= MAX_ITL and ttft <= MAX_TTFT else 1


if __name__ == "__main__":
    sys.exit(main())
