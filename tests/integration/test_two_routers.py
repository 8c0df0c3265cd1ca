"""Two routers behind a balancer, as in Kubernetes, are replaced one after the other by SIGTERM: no request fails."""

from balancer import Balancer
from cluster import Cluster, wait_until
from router import Router
from test_handoff import Load
from test_rolling import ENGINE

WAIT_S = 600
# As the manifests have it, in less time: connections of gRPC end by their age while the router lingers.
FLAGS = ["--drain-grace-ms=60000", "--drain-linger-ms=5000", "--max-grpc-connection-age=1"]
REQUESTS = 40  # between two events


def test_no_request_fails(tmp_path):
    routers = []
    with Cluster(*ENGINE, command="engine") as engine:

        def start():
            return Router([engine.grpc], *FLAGS, log=tmp_path / f"router-{len(list(tmp_path.iterdir()))}")

        try:
            routers = [start(), start()]
            with Balancer([r.http for r in routers]) as http, Balancer([r.grpc for r in routers]) as grpc, \
                    Load(f"http://127.0.0.1:{http.port}", f"127.0.0.1:{grpc.port}") as load:

                def more():
                    until = load.count() + REQUESTS
                    wait_until(lambda: load.errors or load.count() >= until, WAIT_S, f"{REQUESTS} more requests")
                    assert load.errors == []

                more()
                for place in (0, 1, 0, 1):
                    new = start()  # ready, as maxSurge has it, before the other leaves
                    http.ports.append(new.http)
                    grpc.ports.append(new.grpc)
                    more()
                    old, routers[place] = routers[place], new
                    http.ports.remove(old.http)
                    grpc.ports.remove(old.grpc)
                    assert old.stop() == 0
                    more()
                # A gRPC client connects anew once a second: 40 requests may be over before.
                wait_until(lambda: load.errors or all(r.http in http.opened and r.grpc in grpc.opened for r in routers),
                           WAIT_S, "a connection to each router")
                assert load.errors == []
        finally:
            for router in routers:
                if router.process.poll() is None:
                    router.stop()
