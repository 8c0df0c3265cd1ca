"""A router's successor takes its listening sockets over: clients of both see no refused, reset or failed request."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import urllib.request

import openai
from cluster import BIN, Cluster, free_port, wait_until
from router import Router
from test_grpc_client import Reflected

AGE = "--max-grpc-connection-age=1"  # so that a router that was relieved does not wait long for gRPC's clients


class Load:
    """Clients of all kinds, until the block's end: each kept connection, new connections, streams, gRPC."""

    def __init__(self, http_url, grpc_address, copies=1):
        self.url, self.netloc = http_url, http_url.removeprefix("http://")
        self.answers, self.errors, self.done = {}, [], threading.Event()
        self.model = openai.OpenAI(base_url=http_url + "/v1", api_key="none").models.list().data[0].id
        self.body = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
        self.reflected = Reflected(grpc_address)
        kinds = [self.kept, self.kept, self.fresh, self.fresh, self.streams, self.unary_grpc, self.streams_grpc]
        self.threads = [threading.Thread(target=self.run, args=(kind,)) for kind in kinds * copies]

    def run(self, kind):
        try:
            for answer in kind():
                self.answers.setdefault(kind.__name__, []).append(answer)
                if self.done.is_set():
                    return
        except Exception as error:  # whatever a client may meet is told at the end
            self.errors.append((kind.__name__, repr(error)))

    def post(self, connection):
        connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return json.loads(text)["choices"][0]["text"]

    def kept(self):
        """As simple clients do it: a connection is used until the server says that it closes it."""
        while True:
            connection = http.client.HTTPConnection(self.netloc, timeout=60)
            while True:
                yield self.post(connection)
                if connection.sock is None:
                    break

    def fresh(self):
        while True:
            connection = http.client.HTTPConnection(self.netloc, timeout=60)
            yield self.post(connection)
            connection.close()

    def streams(self):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)
        while True:
            yield "".join(chunk.choices[0].text for chunk in client.completions.create(**self.body, stream=True))

    def streams_grpc(self):
        request = self.reflected.message("GenerateRequest")(model=self.model, text=self.body["prompt"])
        request.stopping.max_tokens = self.body["max_tokens"]
        request.sampling.temperature = 0
        while True:
            yield "".join(choice.text for response in self.reflected.call("Generate", request)
                          for choice in response.choices)

    def unary_grpc(self):
        while True:
            request = self.reflected.message("TokenizeRequest")(model=self.model, text="Once")
            yield str(list(self.reflected.call("Tokenize", request).token_ids))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.done.set()
        for thread in self.threads:
            thread.join(120)
        if kind is not None:
            return
        assert self.errors == []
        assert sorted(self.answers) == ["fresh", "kept", "streams", "streams_grpc", "unary_grpc"]
        for kind, answers in self.answers.items():
            assert len(answers) > 5 and len(set(answers)) == 1, (kind, len(answers), set(answers))
        texts = {answers[0] for kind, answers in self.answers.items() if kind != "unary_grpc"}
        assert len(texts) == 1 and texts != {""}

    def count(self):
        return sum(map(len, self.answers.values()))


def test_the_router_of_serve_is_replaced_three_times_under_load():
    with Cluster(f"--router-flag={AGE}") as c, Load(c.http, c.grpc) as load:
        first = c.pids("router")
        client = openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=300)
        body = {"model": load.model, "prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0.8, "seed": 3,
                "extra_body": {"ignore_eos": True}}
        long, whole = [], threading.Event()

        def stream():
            for chunk in client.completions.create(**body, stream=True):
                long.append(chunk.choices[0].text)
            whole.set()

        reader = threading.Thread(target=stream)
        reader.start()
        wait_until(lambda: len(long) > 10, 60, "a stream's beginning")
        for successors in range(1, 4):
            begun = load.count()
            wait_until(lambda: load.count() > begun + 40, 120, "some work")
            c.process.send_signal(signal.SIGUSR2)
            wait_until(lambda: c.logs_text().count("the router has a successor") == successors, 60, "a successor")
            assert successors > 1 or not whole.is_set(), "the stream is too short to outlive its router's service"
        begun = load.count()
        wait_until(lambda: load.count() > begun + 40, 120, "some work")
        reader.join(120)
        assert whole.is_set() and "".join(long) == client.completions.create(**body).choices[0].text
        wait_until(lambda: len(c.pids("router")) == 1, 60, "the former routers' ends")
        assert c.pids("router") != first
        assert c.metric("flotilla_router_requests_total") > 0


def page(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return response.read().decode()


def test_routers_of_their_own_hand_over_at_a_path(tmp_path):
    with Cluster(command="engine") as engine, contextlib.ExitStack() as routers:
        path, metrics = str(tmp_path / "handoff"), free_port()
        flags = ["--handoff-socket", path, "--metrics-port", str(metrics), AGE]

        def router(name, ports=(0, 0)):
            return routers.enter_context(Router([engine.grpc], *flags, ports=ports, log=tmp_path / name))

        first = router("first.log")
        ports = (first.http, first.grpc)
        places = ["--port", str(first.http), "--grpc-port", str(first.grpc)]

        def refused(*more, status=2):
            run = subprocess.run([os.path.join(BIN, "flotilla-router"), "--replica", engine.grpc, *flags, *more],
                                 capture_output=True, text=True, timeout=60)
            assert run.returncode == status and run.stderr.count("\n") == 1, (run.returncode, run.stderr)
            return run.stderr

        with Load(f"http://127.0.0.1:{first.http}", f"127.0.0.1:{first.grpc}") as load:
            assert f"--handoff-socket: --port=1: the router at --handoff-socket listens on {first.http}" in refused(
                "--port", "1")
            assert "--host=127.0.0.2: the router" in refused("--host", "127.0.0.2", *places)
            # One that fails, and one that is killed, when they have the sockets already.
            assert "--api-keys-file" in refused(*places, "--api-keys-file", "/nowhere/keys")
            waiting = subprocess.Popen([os.path.join(BIN, "flotilla-router"), "--replica", "127.0.0.1:1", *flags, *places],
                                       stderr=subprocess.PIPE, text=True)
            wait_until(lambda: any(f"socket:[{inode(first.http)}]" == target for target in sockets_of(waiting.pid)),
                       30, "the sockets in another process")
            assert "the router that serves does not answer" in refused(*places, status=1)  # one after the other
            waiting.kill()
            waiting.communicate(timeout=30)
            wait_until(lambda: load.count() > 100, 120, "work with the first router alone")
            assert first.process.poll() is None

            started = start_time(page(metrics))
            second = router("second.log", ports)
            assert (second.http, second.grpc) == ports
            begun = load.count()
            wait_until(lambda: load.count() > begun + 100, 120, "work with the second router")
            assert first.process.wait(60) == 0
            assert start_time(page(metrics)) != started  # it is the second's page
            assert page(metrics, "/health/ready") == "ready\n"
            assert b"a successor serves" in (tmp_path / "first.log").read_bytes()

            # Killed, it hands nothing over: the next binds the ports itself.
        second.kill()
        assert os.path.exists(path)
        third = router("third.log", ports)
        assert engine_answers(third)
        assert third.stop() == 0
        assert not os.path.exists(path)


def start_time(text):
    return re.search(r'^process_start_time_seconds\{process="router"\} (\S+)$', text, re.M)[1]


def inode(port):
    """Of the socket that listens on a port of 127.0.0.1."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1] == f"0100007F:{port:04X}" and fields[3] == "0A":
                return fields[9]
    return None


def sockets_of(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def engine_answers(router):
    return json.loads(page(router.http, "/v1/models"))["data"]
