#!/usr/bin/env python3
"""What a router alone costs: ours beside others, in turn, each in front of a backend that answers at once.

  tests/bench/routers.py                                     the requests of all of them, then ours alone
  tests/bench/routers.py smg flotilla --seconds 3 --runs 1   these only; the last is judged
  tests/bench/routers.py --only streams                      ours: memory of 1,000 slow streams, relayed tokens
  tests/bench/routers.py --only fleet                        ours: requests, memory and idle CPU time with many replicas

Routers: none (nginx, which is the backend), nginx, haproxy, sglang-router, smg, vllm-router (fetched from PyPI once),
flotilla or "flotilla:FLAGS of the router". Requests are POSTs to /v1/completions by wrk with one thread: 128 token ids,
or 128 words, each prompt another. Printed are medians of --runs rounds. Needs: apt-get install wrk nginx-light haproxy,
and build/release/bench/mock_replica. All share this machine's cores, so only ratios within one run say anything.
"""

import argparse
import contextlib
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.parse

from checkout import DEFAULT_MODEL

os.environ.setdefault("FLOTILLA_TEST_MODEL", DEFAULT_MODEL)
from router_peers import LLM_ROUTERS, Peers, Router, ask, mock_replica  # noqa: E402 - reads the environment
from cluster import cpu_seconds, pss_bytes  # noqa: E402

ALL = ["none", "nginx", "haproxy", *LLM_ROUTERS, "flotilla"]
WRK = """
local words = {{}}
for w in ("sail harbor winter market engine copper river letter garden signal mirror planet people water number sound place "
  .. "year work back thing name sentence line right boy form house page world school plant food country light story group "
  .. "book city tree farm night sea move face door paper music mountain island king space order rock table money"):gmatch("%a+")
do
  words[#words + 1] = w
end
math.randomseed(os.time())
request = function()
  local p = {{}}
  for i = 1, 128 do p[i] = {word} end
  local body = '{{"model":"mock","prompt":' .. {prompt} .. ',"max_tokens":{tokens},"stream":{stream}}}'
  return wrk.format("POST", "/v1/completions", {{["Content-Type"] = "application/json"}}, body)
end
done = function(summary, latency, requests)
  io.write(string.format('\\n{{"requests":%d,"seconds":%f,"p50_us":%d,"p99_us":%d,"failed":%d}}\\n', summary.requests,
    summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
"""
KINDS = {
    "token ids": dict(word="math.random(1000, 40000)", prompt="'[' .. table.concat(p, ',') .. ']'"),
    "text": dict(word="words[math.random(#words)]", prompt="'\"' .. table.concat(p, ' ') .. '\"'"),
}


def wrk(peers, url, kind, connections, seconds, tokens=64, stream=False):
    script = peers.folder / "load.lua"
    script.write_text(WRK.format(**KINDS[kind], tokens=tokens, stream="true" if stream else "false"))
    ran = subprocess.run(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", script, url],
                         capture_output=True, text=True, check=True)
    figures = json.loads(ran.stdout.strip().splitlines()[-1])
    assert figures["requests"] > 0 and figures["failed"] == 0, f"{url}: {ran.stdout}"
    return figures


def accepts(url, kind):
    """Whether the router takes prompts of this kind at all: not all take token ids."""
    try:
        ask(url, "a few words" if kind == "text" else [1000, 1001])
        return True
    except urllib.error.HTTPError as error:
        if error.code not in (400, 422):
            raise
        return False


def measure_requests(peers, args):
    """figures[name][kind]: requests a second, p50 of 64 connections and of one, CPU µs of the router a request. Without
    the kinds that a router refuses."""
    figures = {name: {kind: [] for kind in KINDS} for name in peers.names}
    for run in range(args.runs):
        for name in peers.names:
            for kind in KINDS:
                with peers.start(name) as (url, pid):
                    if not accepts(url, kind):
                        continue
                    wrk(peers, url, kind, args.connections, 1)  # warm
                    before = cpu_seconds(pid)
                    many = wrk(peers, url, kind, args.connections, args.seconds)
                    used = cpu_seconds(pid) - before
                    one = wrk(peers, url, kind, 1, max(1, args.seconds // 2))
                figures[name][kind].append({"req_s": many["requests"] / many["seconds"], "p50_ms": many["p50_us"] / 1e3,
                                            "p99_ms": many["p99_us"] / 1e3, "one_us": one["p50_us"],
                                            "cpu_us": used / many["requests"] * 1e6})
                print(f"round {run + 1}: {name}, {kind}: {figures[name][kind][-1]['req_s']:.0f} req/s", file=sys.stderr)
    return {name: {kind: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                   for kind, runs in kinds.items() if runs} for name, kinds in figures.items()}


def print_requests(figures, ping):
    for kind in KINDS:
        print(f"\n| {kind} | req/s | p50 ms | p99 ms | one connection p50 µs | CPU µs a request |\n|---|---|---|---|---|---|")
        for name, kinds in figures.items():
            row = kinds.get(kind)
            if row is None:
                print(f"| {name} | refuses them | | | | |")
                continue
            print(f"| {name} | {row['req_s']:,.0f} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['one_us']:.0f} "
                  f"| {row['cpu_us']:.0f} |")
    judged = list(figures)[-1]
    for kind in KINDS:
        others = [name for name in figures if name in LLM_ROUTERS and kind in figures[name]]
        if not others:
            continue
        best = max(others, key=lambda name: figures[name][kind]["req_s"])
        print(f"\n{judged}, {kind}: {figures[judged][kind]['req_s'] / figures[best][kind]['req_s']:.2f} times {best}")
    if "none" in figures:
        for name, kinds in figures.items():
            for kind in kinds if name != "none" else ():
                print(f"{name} adds {kinds[kind]['one_us'] - figures['none'][kind]['one_us']:.0f} µs at one connection, {kind}")
    print(f"a bare gRPC stream's echo: {ping['ping_p50_us']:.0f} µs, p99 {ping['ping_p99_us']:.0f}")


def measure_relay(peers, flags, args):
    """Tokens that the router relays for a second of its CPU time: one token a frame entry, as fast as they come."""
    name, tokens = f"flotilla:{flags}", 500
    with peers.start(name, step_us=1) as (url, pid):
        wrk(peers, url, "token ids", args.connections, 1, tokens, stream=True)
        before = cpu_seconds(pid)
        done = wrk(peers, url, "token ids", args.connections, args.seconds, tokens, stream=True)
        used = cpu_seconds(pid) - before
    relayed = done["requests"] * tokens
    print(f"relayed, {args.connections} streams: {relayed / done['seconds']:,.0f} tokens/s, "
          f"{relayed / used:,.0f} a second of the router's CPU time (limit 200,000)")


def measure_slow_streams(peers, flags, count):
    """The router's memory with that many streams under way, a token a second each."""
    body = json.dumps({"model": "mock", "prompt": [1000] * 128, "max_tokens": 600, "stream": True}).encode()
    with peers.start(f"flotilla:{flags}", step_us=1_000_000) as (url, pid), contextlib.ExitStack() as opened:
        idle = pss_bytes(pid)
        address = urllib.parse.urlsplit(url)
        selector = opened.enter_context(selectors.DefaultSelector())
        events = {}
        for _ in range(count):
            each = opened.enter_context(socket.create_connection((address.hostname, address.port)))
            each.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                         + str(len(body)).encode() + b"\r\n\r\n" + body)
            selector.register(each, selectors.EVENT_READ)
            events[each] = 0
        until, peak = time.monotonic() + 20, 0
        while time.monotonic() < until and min(events.values()) < 4:
            for key, _ in selector.select(1):
                read = key.fileobj.recv(65536)
                assert read, "a stream was closed"
                events[key.fileobj] += read.count(b"data: ")
            peak = max(peak, pss_bytes(pid))
    assert min(events.values()) >= 4, "a stream had fewer than four tokens"
    print(f"{count} slow streams: {peak / 1e6:.0f} MB of the router at most (limit 150), {idle / 1e6:.0f} MB without")


def measure_fleet(peers, args):
    """Requests a second, memory and idle CPU time of a router with more and more replicas."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("\n| replicas | policy | ready after, s | memory, MB | idle CPU, % of a core | req/s | CPU µs a request |\n"
          "|---:|---|---:|---:|---:|---:|---:|")
    for count in (10, 100, 1_000, 9_000):
        for policy in ("power_of_two", "shortest_queue", "prefix_aware"):
            address = f"unix:{peers.folder}/many"
            flags = ["--log-level", "error", "--policy", policy, "--max-replicas", "20000"]
            with mock_replica("--listen", address, "--count", str(count)):
                begin = time.monotonic()
                with Router([f"{address}-{i}" for i in range(count)], *flags) as router:
                    pid, url = router.process.pid, f"http://127.0.0.1:{router.http}"
                    while router.ready_replicas() < count:
                        time.sleep(0.1)
                    ready = time.monotonic() - begin
                    wrk(peers, url, "token ids", args.connections, 1)
                    before, since = cpu_seconds(pid), time.monotonic()
                    time.sleep(5)
                    idle = (cpu_seconds(pid) - before) / (time.monotonic() - since)
                    before = cpu_seconds(pid)
                    done = wrk(peers, url, "token ids", args.connections, args.seconds)
                    used = (cpu_seconds(pid) - before) / done["requests"]
                    print(f"| {count:,} | {policy} | {ready:.1f} | {pss_bytes(pid) / 1e6:,.0f} | {idle:.1%} "
                          f"| {done['requests'] / done['seconds']:,.0f} | {used * 1e6:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routers", nargs="*", default=ALL)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["requests", "streams", "fleet"])
    args = parser.parse_args()
    peers = Peers(args.routers)
    flags = next((name.partition(":")[2] for name in reversed(args.routers) if name.startswith("flotilla")), None)
    try:
        if args.only == "fleet":
            measure_fleet(peers, args)
            return
        if args.only != "streams":
            ping = peers.ping()
            print_requests(measure_requests(peers, args), ping)
        if args.only != "requests" and flags is not None:
            measure_relay(peers, flags, args)
            measure_slow_streams(peers, flags, 1000)
    finally:
        peers.close()


if __name__ == "__main__":
    main()
