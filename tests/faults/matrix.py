"""The fault matrix: what goes wrong × what the fleet is doing. No client may notice.

  python matrix.py --full            every fault in every state (ten minutes)
  python matrix.py --sample          each fault and each state at least once (a minute; in CI)
  python matrix.py --cell "worker kill,decode" --cell closed_socket,idle

Faults: SIGKILL and SIGSTOP of a scheduler, worker, detokenizer and router; closed_socket (every connection between
routers and replicas is cut), slow_peer (they trickle), full_disk (of all logs). States: idle; prefill (long prompts are being computed); decode (every
client has some tokens); draining (a replica was told to stop, the fault hits it); starting (a replica's scheduler is
just starting again).

In every cell six clients get, to the last byte, the text that they get undisturbed, with no pause of 20 s; afterwards both replicas are
ready, nothing runs and no KV page is missing. A client whose router dies or stands still asks the other router again,
with the Idempotency-Key that it chose; all others have no retries of their own.

A step of the wall clock is no cell: whoever may set it sets it for the whole machine, and what fakes it for one process
can't reach waits inside the kernel, so it shows faults that a real step has not and hides those that it has. Durations
are measured by CLOCK_MONOTONIC; tests/house/house_test.py lists who may read the wall clock.

Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR (`./flotilla test` sets both). The exit status is the number of cells that
failed.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import time

from fleet import Fleet, Stream, wait_until

KILLS = [f"{victim} {how}" for victim in ("scheduler", "worker", "detokenizer", "router") for how in ("kill", "stop")]
FAULTS = [*KILLS, "closed_socket", "slow_peer", "full_disk"]
STATES = ["idle", "prefill", "decode", "draining", "starting"]
SAMPLE = ["scheduler kill,prefill", "worker stop,decode", "detokenizer kill,draining", "router kill,decode",
          "worker kill,starting", "closed_socket,decode", "slow_peer,prefill", "full_disk,idle"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
CLIENTS = 6
STREAM_S = 180
# That no client waits for a piece, beside three times what it waits undisturbed: watchdogs and heartbeats take a few
# seconds, then work is repeated.
PAUSE_S = 20


def body_of(state, i):
    rng = random.Random(i)
    prompt = [rng.randrange(1000, 40000) for _ in range(700)] if state == "prefill" else f"Story number {i}: once"
    return {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": 24 if state == "prefill" else 80,
            "temperature": 0.8, "seed": i, "ignore_eos": True}


class Matrix:
    def __init__(self):
        self.expected = {}  # by state: the texts
        self.usual_pause_s = {}  # by state: nobody disturbs them
        self.number = 0
        self.longest_pause_s = 0.0  # of the last cell

    def streams(self, fleet, state, keyed=False):
        self.number += 1
        keys = [f"{self.number}-{i}" if keyed else None for i in range(CLIENTS)]
        return [Stream(fleet.routers, body_of(state, i), keys[i]) for i in range(CLIENTS)]

    def undisturbed(self, fleet, state):
        state = "prefill" if state == "prefill" else "decode"
        if state not in self.expected:
            streams = self.streams(fleet, state)
            self.finish(streams)
            assert not any(stream.is_alive() for stream in streams), "the undisturbed streams end"
            errors = [stream.error for stream in streams if stream.error]
            assert not errors, errors
            assert all(stream.tokens == stream.body["max_tokens"] for stream in streams), "they are whole"
            self.expected[state] = [stream.text for stream in streams]
            self.usual_pause_s[state] = max(stream.longest_pause_s for stream in streams)
        return self.expected[state], PAUSE_S + 3 * self.usual_pause_s[state]

    @staticmethod
    def finish(streams):
        for stream in streams:
            if not stream.ident:
                stream.start()
        for stream in streams:
            stream.join(STREAM_S)

    def run(self, fleet, fault, state):
        """Complaints about one cell."""
        found = []
        try:
            self.disturb(fleet, fault, state, found)
        except AssertionError as error:
            found.append(str(error))
        return found

    def disturb(self, fleet, fault, state, found):
        expected, most_pause_s = self.undisturbed(fleet, state)
        streams = self.streams(fleet, state, keyed=fault.startswith("router"))
        self.reach(fleet, fault, state, streams)
        self.inject(fleet, fault)
        self.finish(streams)
        self.restore(fleet, fault, state)
        self.longest_pause_s = max(stream.longest_pause_s for stream in streams)
        for i, stream in enumerate(streams):
            if stream.is_alive():
                found.append(f"client {i} still waits after {STREAM_S} s")
            elif stream.error:
                found.append(f"client {i}: {stream.error[:300]}")
            elif stream.text != expected[i]:
                found.append(f"client {i} got another text")
            elif stream.longest_pause_s > most_pause_s:
                found.append(f"client {i} got nothing for {stream.longest_pause_s:.1f} s")
        if not fault.startswith("router"):
            dead = [router.process.returncode for router in fleet.routers if router.process.poll() is not None]
            if dead:
                found.append(f"a router ended with {dead}")
        fleet.wait_recovered()

    def reach(self, fleet, fault, state, streams):
        """Until the fleet is in that state."""
        if state == "starting" and fault.startswith("router"):
            fleet.routers[0].kill()
            fleet.routers[0].start()
        elif state == "starting":
            old = fleet.engines[0].pids("scheduler")
            os.kill(old[0], signal.SIGKILL)
            wait_until(lambda: set(fleet.engines[0].pids("scheduler")) - set(old), 30, "a new scheduler starts")
        elif state != "idle":
            for stream in streams:
                stream.start()
            if state == "prefill":
                # Keys may all have the same home.
                some = any if fault.startswith("router") else all
                wait_until(lambda: some(fleet.value(engine, "requests_running") for engine in fleet.engines), 60,
                           "the replicas compute prompts")
            else:
                wait_until(lambda: all(stream.pieces >= 3 or not stream.is_alive() for stream in streams), 60,
                           "all have begun")
        if state == "draining":
            victim = fleet.routers[0].process if fault.startswith("router") else fleet.engines[0].process
            victim.send_signal(signal.SIGTERM)

    @staticmethod
    def inject(fleet, fault):
        if fault in KILLS:
            victim, how = fault.split()
            if victim == "router":
                fleet.routers[0].process.send_signal(SIGNALS[how])
                return
            for pid in fleet.engines[0].pids(victim)[:1]:  # none: it is starting, or has ended already
                os.kill(pid, SIGNALS[how])
        elif fault == "closed_socket":
            for proxy in fleet.proxies:
                proxy.cut()
        elif fault == "slow_peer":
            for proxy in fleet.proxies:
                proxy.delay_s = 0.02

    @staticmethod
    def restore(fleet, fault, state):
        """What an administrator, or Kubernetes, does afterwards."""
        for proxy in fleet.proxies:
            proxy.delay_s = 0.0
        if fault.startswith("router"):
            fleet.routers[0].kill()
        if state == "draining" and not fault.startswith("router"):
            fleet.restart(0)


def parse_cell(text):
    fault, _, state = text.partition(",")
    if fault not in FAULTS or state not in STATES:
        raise argparse.ArgumentTypeError(f"{text!r} is not FAULT,STATE; there are {', '.join(FAULTS)} and "
                                         f"{', '.join(STATES)}")
    return fault, state


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--full", action="store_true")
    what.add_argument("--sample", action="store_true")
    what.add_argument("--cell", action="append", type=parse_cell, help="may be given several times")
    args = parser.parse_args()
    cells = args.cell or [parse_cell(cell) for cell in SAMPLE]
    if args.full:
        cells = list(itertools.product(FAULTS, STATES))
    matrix, failed, fleet = Matrix(), 0, None
    try:
        for number, (fault, state) in enumerate(cells, 1):
            if fleet is not None and fleet.full_disk != (fault == "full_disk"):
                fleet.stop()
                fleet = None
            fleet = fleet or Fleet(fault == "full_disk")
            begin = time.monotonic()
            found = matrix.run(fleet, fault, state)
            print(f"[{number}/{len(cells)}] {fault}, {state}: {time.monotonic() - begin:.1f} s, longest pause "
                  f"{matrix.longest_pause_s:.1f} s",
                  *(f"  FAILED: {each}" for each in found), sep="\n", flush=True)
            failed += bool(found)
            if found:  # what it left must not be laid to the next
                print(*(engine.logs() for engine in fleet.engines), sep="\n---\n", flush=True)
                fleet.stop()
                fleet = None
    finally:
        if fleet is not None:
            fleet.stop()
    print(f"{len(cells) - failed} of {len(cells)} cells: no client noticed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
