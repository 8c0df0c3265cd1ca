#!/usr/bin/env python3
"""The router's policies on two real replicas, the same requests at the same times for each, from cold caches.

  python tests/bench/policies.py [--rounds 3] [--check]

skewed          open arrivals; one request in twenty has a long prompt and a long answer, the others are short. A policy that
                does not look sends short ones behind long ones: shortest_queue must beat round_robin in p99 of TTFT.
conversations   32 of 4 turns; each group of 4 has a long system prompt in common, and each turn repeats what was said
                before. A replica's cache holds half of all that. prefix_aware must beat both others in TTFT (median and p99), and no replica may compute over 1.5
                times the mean.

TTFT: until the first piece of a stream. A replica is one thread, so two cores are used up. hits: prompt tokens found
cached. most: of the replica with most prompt and output tokens computed, over the mean. Medians of --rounds, in turn.
Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR, and a machine with nothing else to do.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time
from urllib.parse import urlsplit

from checkout import commit
from streams import Cluster, prompt_of

POLICIES = ["round_robin", "shortest_queue", "prefix_aware"]
MOST_LOAD = 1.5
FLAGS = ["--replicas", "2", "--tp", "1", "--context-length", "4096"]
KV_CACHE = {"skewed": "512MiB", "conversations": "160MiB"}
# skewed
SHORT, LONG, LONG_SHARE = (48, 8), (1500, 160), 0.05  # tokens of prompt and answer
# conversations
GROUPS, IN_GROUP, TURNS = 8, 4, 4
SYSTEM, QUESTION, ANSWER = 700, 60, 16  # tokens


class Ttfts:
    def __init__(self):
        self.lock, self.ms, self.prompt, self.cached = threading.Lock(), [], 0, 0

    def ask(self, cluster, prompt, tokens):
        connection = http.client.HTTPConnection(urlsplit(cluster.http).netloc, timeout=600)
        body = {"model": cluster.model_id, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        begin, first = time.monotonic(), None
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.monotonic()
                last = line
        connection.close()
        usage = json.loads(last[6:])["usage"]
        assert usage["completion_tokens"] == tokens
        with self.lock:
            self.ms.append((first - begin) * 1e3)
            self.prompt += usage["prompt_tokens"]
            self.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def percentile(self, share):
        return sorted(self.ms)[min(len(self.ms) - 1, int(len(self.ms) * share))]


def skewed(cluster, seed, args):
    rng, ttfts = random.Random(seed), Ttfts()
    with concurrent.futures.ThreadPoolExecutor(256) as pool:
        asked, at = [], time.monotonic()
        for _ in range(args.requests):
            prompt, tokens = LONG if rng.random() < LONG_SHARE else SHORT
            at += rng.expovariate(args.rate)
            time.sleep(max(0, at - time.monotonic()))
            asked.append(pool.submit(ttfts.ask, cluster, prompt_of(rng, prompt), tokens))
        for each in asked:
            each.result()
    return ttfts


def conversations(cluster, seed, args):
    rng, ttfts = random.Random(seed), Ttfts()
    talks = []
    for _ in range(GROUPS):
        system = prompt_of(rng, SYSTEM)
        talks += [(list(system), random.Random(rng.random())) for _ in range(IN_GROUP)]
    rng.shuffle(talks)

    def talk(said, own):
        time.sleep(own.uniform(0, 20))
        for _ in range(TURNS):
            said += prompt_of(own, QUESTION)
            ttfts.ask(cluster, said, ANSWER)
            said += prompt_of(own, ANSWER)  # in an answer's place
            time.sleep(own.uniform(1, 4))

    with concurrent.futures.ThreadPoolExecutor(len(talks)) as pool:
        for each in [pool.submit(talk, *one) for one in talks]:
            each.result()
    return ttfts


def computed(cluster):
    """Prompt and output tokens that each replica computed."""
    page, out = cluster.metrics(), {}
    for key, value in page.items():
        name = key.split("{")[0]
        sign = {"flotilla_scheduler_prompt_tokens_total": 1, "flotilla_scheduler_generation_tokens_total": 1,
                "flotilla_scheduler_cached_tokens_total": -1}.get(name)
        if sign:
            replica = key.split('replica="')[1].split('"')[0]
            out[replica] = out.get(replica, 0) + sign * value
    assert len(out) == 2 and min(out.values()) > 0, out
    return out


def measure(workload, policy, seed, args):
    with Cluster(*FLAGS, "--kv-cache-memory", KV_CACHE[workload.__name__], "--policy", policy, disturbed=True) as cluster:
        ttfts = workload(cluster, seed, args)
        loads = computed(cluster)
    return {"p50": ttfts.percentile(0.5), "p99": ttfts.percentile(0.99), "hits": ttfts.cached / ttfts.prompt,
            "most": max(loads.values()) / statistics.mean(loads.values())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["skewed", "conversations"], metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=300, help="of skewed")
    parser.add_argument("--rate", type=float, default=8, help="requests a second of skewed")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    kept = True
    print(f"commit {commit()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in args.workloads:
        workload = {"skewed": skewed, "conversations": conversations}[name]
        runs = {policy: [] for policy in POLICIES}
        for seed in range(args.rounds):
            for policy in POLICIES[:: 1 if seed % 2 == 0 else -1]:
                runs[policy].append(measure(workload, policy, seed, args))
                print(f"{name}, round {seed + 1}, {policy}: {runs[policy][-1]}", file=sys.stderr, flush=True)
        of = {policy: {key: statistics.median(run[key] for run in each) for key in each[0]} for policy, each in runs.items()}
        print(f"\n| {name} | TTFT p50, ms | p99, ms | hits | most |\n|---|---:|---:|---:|---:|")
        for policy, each in of.items():
            print(f"| {policy} | {each['p50']:.0f} | {each['p99']:.0f} | {each['hits']:.0%} | {each['most']:.2f} |")
        robin, queue, prefix = (of[policy] for policy in POLICIES)
        if name == "skewed":
            good = queue["p99"] < robin["p99"]
        else:
            good = (all(prefix[key] < min(robin[key], queue[key]) for key in ("p50", "p99"))
                    and prefix["most"] <= MOST_LOAD)
        kept = kept and good
        print(f"{name}: {'as promised' if good else 'MISSED'}", flush=True)
    sys.exit(1 if args.check and not kept else 0)


if __name__ == "__main__":
    main()
