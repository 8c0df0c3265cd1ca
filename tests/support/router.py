"""A flotilla-router of a test's own, in front of replicas that it started (cluster.py has those of a launcher)."""

import json
import os
import signal
import subprocess
import urllib.request

from cluster import BIN


class Router:
    """`log`: a file for what it says; else that goes where the test's own words go. `ports`: HTTP, gRPC. `programs`: the
    folder of another build."""

    def __init__(self, replicas, *flags, log=None, ports=(0, 0), programs=BIN):
        self.argv = [os.path.join(programs, "flotilla-router"), "--port", str(ports[0]), "--grpc-port", str(ports[1])]
        self.argv += flags
        self.argv += [flag for address in replicas for flag in ("--replica", address)]
        self.log = log
        self.start()

    def start(self):
        """Until it says that it is ready, which is when one replica is. Also to start it again."""
        reading, writing = os.pipe()
        log = open(self.log, "wb") if self.log else None
        self.process = subprocess.Popen([*self.argv, "--notify-fd", str(writing)], pass_fds=[writing], stderr=log)
        os.close(writing)
        if log:
            log.close()
        with os.fdopen(reading) as notify:
            line = notify.readline()
        assert line.startswith("READY "), f"the router did not start; it wrote to {self.log or 'stderr'}"
        ports = dict(part.split("=") for part in line.split()[1:])
        self.http, self.grpc = int(ports["http"]), int(ports["grpc"])

    def ready_replicas(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ui/fleet.json", timeout=5) as response:
                return sum(each["state"] == "ready" and not each["draining"]
                           for each in json.load(response)["replicas"])
        except OSError:
            return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def stop(self):
        """Its exit status."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(60)
