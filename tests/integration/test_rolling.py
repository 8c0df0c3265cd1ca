"""Everything behind the clients is replaced, one after the other, while they go on: none of 5,000 requests fails."""

import threading

import openai
from cluster import BIN, Cluster, free_port, wait_until
from router import Router
from test_handoff import AGE, Load

REQUESTS = 5000
# Fewer seconds than a long stream takes, so that some have to move to the other replica.
ENGINE = ["--kv-cache-memory", "128MiB", "--context-length", "2048", "--shutdown-timeout", "1"]
WAIT_S = 900


class LongStreams:
    """Clients of streams that are under way whatever is replaced; all have the same text."""

    def __init__(self, url, model, clients):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
        self.body = {"model": model, "prompt": "The history of sailing", "max_tokens": 400, "temperature": 0.8, "seed": 11,
                     "extra_body": {"ignore_eos": True}}
        self.texts, self.errors, self.done = [], [], threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self):
        try:
            while not self.done.is_set():
                chunks = self.client.completions.create(**self.body, stream=True)
                self.texts.append("".join(chunk.choices[0].text for chunk in chunks))
        except Exception as error:  # whatever a client may meet is told at the end
            self.errors.append(repr(error))

    def end(self):
        self.done.set()
        for thread in self.threads:
            thread.join(300)
        assert self.errors == []
        undisturbed = self.client.completions.create(**self.body).choices[0].text
        assert len(self.texts) > 10 and set(self.texts) == {undisturbed}, (len(self.texts), len(set(self.texts)))


def replace_everything(tmp_path, programs, requests):
    """Both replicas and the router, one after the other, under load: those of programs[0] by those of programs[1], and
    so on."""
    ports = [free_port(), free_port()]
    engines, router, routers = [], None, []
    flags = ["--handoff-socket", str(tmp_path / "handoff"), "--slow-start-ms", "0", AGE]

    def next_engine(port, folder):
        return Cluster(*ENGINE, command="engine", grpc_port=port, programs=folder)

    def next_router(folder):
        routers.append(Router([f"127.0.0.1:{port}" for port in ports], *flags, log=tmp_path / f"router-{len(routers)}",
                              ports=(router.http, router.grpc) if router else (0, 0), programs=folder))
        return routers[-1]

    try:
        for port in ports:
            engines.append(next_engine(port, programs[0]))
        router = next_router(programs[0])
        wait_until(lambda: router.ready_replicas() == 2, 60, "both replicas")
        with Load(f"http://127.0.0.1:{router.http}", f"127.0.0.1:{router.grpc}", copies=2) as load:
            long = LongStreams(load.url, load.model, 4)

            def more(requests):
                until = load.count() + requests
                wait_until(lambda: load.errors or load.count() >= until, WAIT_S, f"{requests} more requests")
                assert load.errors == [] and long.errors == []

            share = requests // (4 * (len(programs) - 1))
            for folder in programs[1:]:
                for number, port in enumerate(ports):
                    more(share)
                    assert engines[number].stop() == 0
                    engines[number] = next_engine(port, folder)
                    wait_until(lambda: router.ready_replicas() == 2, 60, "the replica that was replaced")
                    more(share)
                former, router = router, next_router(folder)
                assert former.process.wait(120) == 0
            more(max(0, requests - load.count()))
            long.end()
        logs = "".join(log.read_text() for log in tmp_path.glob("router-*"))
        assert logs.count(" continued ") > 0, "no stream was moved"
    finally:
        for each in routers:
            if each.process.poll() is None:
                each.stop()
        for engine in engines:
            engine.stop()


def test_replicas_and_routers_are_replaced_under_load(tmp_path):
    replace_everything(tmp_path, [BIN, BIN, BIN], REQUESTS)
