"""Each fault of the fault matrix has an alert that comes, and goes when the fault is over; a real Prometheus says so.

The rules are those of deploy/monitoring with seconds for minutes, and any number of requests is enough. The fleet is the
fault matrix's.
"""

import os
import pathlib
import re
import signal
import sys
import urllib.parse

import pytest
from cluster import free_port, wait_until
from prometheus import Prometheus

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from fleet import Fleet  # noqa: E402 - found by the line above
from matrix import FAULTS, SIGNALS, Matrix  # noqa: E402

WAIT_S = 120
WATCHDOG_S = 8  # a process that stands still is seen before it is replaced
RESTARTS, STUCK, DOWN = "FlotillaRestarts", "FlotillaStuck", "FlotillaTargetDown"
ALERTS = {"scheduler kill": RESTARTS, "worker kill": RESTARTS, "detokenizer kill": RESTARTS,
          "scheduler stop": STUCK, "worker stop": STUCK, "detokenizer stop": STUCK,
          "router kill": DOWN, "router stop": DOWN, "closed_socket": "FlotillaNoReplica",
          "slow_peer": "FlotillaFirstTokensLate", "full_disk": "FlotillaLogLost"}


def shortened(text):
    text = re.sub(r"\[\d+[mhd]\]", "[10s]", text)
    text = re.sub(r"\bfor: \d+[mh]\b", "for: 1s", text)
    text = re.sub(r"(requests_increase\w+ >) \d+", r"\1 0", text)
    return text.replace("heartbeat_age_seconds > 15", "heartbeat_age_seconds > 2")


class Watched:
    def __init__(self, folder, full_disk=False):
        self.fleet = Fleet(full_disk, WATCHDOG_S)
        try:
            targets = [urllib.parse.urlsplit(engine.metrics_url).netloc for engine in self.fleet.engines]
            targets += [f"127.0.0.1:{port}" for port in self.fleet.router_metrics]
            self.prometheus = Prometheus([{"targets": targets}], folder, shortened)
        except BaseException:
            self.fleet.stop()
            raise
        self.matrix = Matrix()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.prometheus.stop()
        self.fleet.stop()

    def wait_scraped(self):
        """So that what is counted from now on is more than was."""
        wait_until(lambda: len(self.prometheus.query("count_over_time((up == 1)[10s:1s]) > 4") or []) == 4, WAIT_S,
                   "all four are being scraped")

    def wait_alert(self, alert):
        wait_until(lambda: alert in self.prometheus.firing(), WAIT_S, f"{alert} comes")

    def wait_quiet(self, alert):
        wait_until(lambda: alert not in self.prometheus.firing(), WAIT_S, f"{alert} goes")

    def ask(self, state):
        """Six streams; those that fail are not this test's matter."""
        streams = self.matrix.streams(self.fleet, state)
        for stream in streams:
            stream.start()
        return streams


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    with Watched(tmp_path_factory.mktemp("prometheus")) as watched:
        watched.wait_scraped()
        yield watched


def test_each_fault_has_its_alert():
    assert sorted(ALERTS) == sorted(FAULTS)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("closed_socket", "slow_peer", "full_disk")])
def test_a_process_that_is_killed_or_stands_still(watched, fault):
    watched.wait_quiet(ALERTS[fault])
    victim, how = fault.split()
    router = watched.fleet.routers[0]
    pid = router.process.pid if victim == "router" else watched.fleet.engines[0].pids(victim)[0]
    os.kill(pid, SIGNALS[how])
    watched.wait_alert(ALERTS[fault])
    if fault == "router kill":
        router.process.wait(30)
        router.start()
    elif fault == "router stop":
        os.kill(pid, signal.SIGCONT)
    watched.wait_quiet(ALERTS[fault])
    watched.fleet.wait_recovered()


def test_replicas_that_cannot_be_reached(watched):
    alert = ALERTS["closed_socket"]
    watched.wait_quiet(alert)
    ports = [proxy.backend for proxy in watched.fleet.proxies]
    for proxy in watched.fleet.proxies:
        proxy.backend = free_port()
        proxy.cut()
    watched.wait_alert(alert)
    for proxy, port in zip(watched.fleet.proxies, ports):
        proxy.backend = port
    watched.wait_quiet(alert)
    watched.fleet.wait_recovered()


def test_replicas_that_answer_slowly(watched):
    alert = ALERTS["slow_peer"]
    watched.wait_quiet(alert)
    for proxy in watched.fleet.proxies:
        proxy.delay_s = 0.7
    streams = watched.ask("prefill")
    watched.wait_alert(alert)
    for proxy in watched.fleet.proxies:
        proxy.delay_s = 0.0
    watched.matrix.finish(streams)
    watched.wait_quiet(alert)
    watched.fleet.wait_recovered()


def test_a_log_without_space(tmp_path):
    with Watched(tmp_path, full_disk=True) as watched:
        watched.wait_scraped()
        alert = ALERTS["full_disk"]
        watched.wait_quiet(alert)
        os.kill(watched.fleet.engines[0].pids("worker")[0], signal.SIGKILL)  # of which much is to be said
        watched.wait_alert(alert)
        watched.fleet.wait_recovered()
        watched.wait_quiet(alert)
