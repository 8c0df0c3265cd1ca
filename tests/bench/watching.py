#!/usr/bin/env python3
"""What it costs a cluster to be watched: scrapes of /metrics, and traces of every request.

  python tests/bench/watching.py [--rounds 5] [--requests 160] [--check]

A scrape: the merged page of a cluster that has served, its time and the CPU time of all processes. Every ten seconds
that is a share of what the cores can do, which no measurement of tokens a second could resolve. Traces: the same load
(`flotilla bench serve`) on clusters without and with a collector of OTLP, in turn; medians. Limits: a scrape 2 ms
(median) and 0.5 % of the cores, traces of all requests 2 % of the tokens a second. Needs FLOTILLA_TEST_MODEL and
FLOTILLA_BIN_DIR, and a machine with nothing else to do.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from urllib.parse import urlsplit

from checkout import commit
from streams import Cluster
from cluster import BIN, cpu_seconds  # found by streams
from otlp_collector import Collector

SCRAPES, PERIOD_S = 200, 10
MOST_MS, MOST_SHARE, MOST_TRACING = 2.0, 0.005, 0.02


def load(cluster, clients, requests):
    ran = subprocess.run([os.path.join(BIN, "flotilla"), "bench", "serve", "--url", cluster.http, "--json", "--requests",
                          str(requests), "--max-concurrency", str(clients)], check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)["out_tok_s"]


def cpu_of(cluster):
    return sum(cpu_seconds(pid) for pid in [cluster.process.pid, *cluster.processes()])


def scrape_costs(cluster):
    """Milliseconds of the median scrape, the share of the cores that one every PERIOD_S takes, bytes of the page."""
    address = urlsplit(cluster.metrics_url)
    times, idle_begin, idle_at = [], cpu_of(cluster), time.monotonic()
    time.sleep(3)
    idle = (cpu_of(cluster) - idle_begin) / (time.monotonic() - idle_at)
    before, begin = cpu_of(cluster), time.monotonic()
    for _ in range(SCRAPES):
        connection = http.client.HTTPConnection(address.netloc, timeout=30)
        start = time.perf_counter()
        connection.request("GET", address.path or "/metrics")
        page = connection.getresponse().read()
        times.append((time.perf_counter() - start) * 1e3)
        connection.close()
        assert b"flotilla_" in page
    used = cpu_of(cluster) - before - idle * (time.monotonic() - begin)
    return statistics.median(times), used / SCRAPES / PERIOD_S / os.cpu_count(), len(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=160, help="of a round")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    collector = Collector()
    kinds = {"without": [], "with": ["--otlp-traces-endpoint", collector.url]}
    rates = {kind: [] for kind in kinds}
    print(f"commit {commit()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for i in range(args.rounds):
        for kind in list(kinds)[:: 1 if i % 2 == 0 else -1]:
            with Cluster(*kinds[kind], disturbed=True) as cluster:
                load(cluster, args.clients, 2 * args.clients)
                rates[kind].append(load(cluster, args.clients, args.requests))
                if i == 0 and kind == "without":
                    ms, share, size = scrape_costs(cluster)
                    print(f"a scrape of {size / 1e3:.0f} KB: {ms:.2f} ms in the median (limit {MOST_MS:g}); every "
                          f"{PERIOD_S} s it takes {share:.3%} of the cores (limit {MOST_SHARE:.1%})", flush=True)
    without, traced = (statistics.median(rates[kind]) for kind in kinds)
    spans = len(collector.spans())
    assert spans >= args.rounds * args.requests, "requests were not traced"
    cost = 1 - traced / without
    for kind, each in rates.items():
        print(f"{kind} traces: " + ", ".join(f"{rate:.1f}" for rate in each) + " output tokens/s")
    print(f"traces of every request: {cost:+.1%} of the tokens a second in the median (limit {MOST_TRACING:.0%}), "
          f"{spans:,} spans")
    if args.check and (ms > MOST_MS or share > MOST_SHARE or cost > MOST_TRACING):
        sys.exit(1)


if __name__ == "__main__":
    main()
