"""TLS with certificates on both sides: clients and a router, the router and an engine. Certificates change while a
stream runs, in folders of links as a kubelet writes them."""

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import grpc
import openai
import pytest
from cluster import BIN, Cluster, free_port, wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from router import Router

TOKENS = 300
CONFIG = """[req]
distinguished_name = name
prompt = no
[name]
CN = flotilla test
[authority]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


class Authority:
    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        (folder / "config").write_text(CONFIG)
        self.make("ca", "authority")

    def make(self, name, kind, *more):
        subprocess.run(["openssl", "req", "-x509", "-config", "config", "-extensions", kind, "-newkey", "ec",
                        "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "30", "-keyout", f"{name}.key",
                        "-out", f"{name}.crt", *more],
                       cwd=self.folder, check=True, capture_output=True, timeout=60)
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def issue(self, name):
        """The files of a new certificate and of its key."""
        return self.make(name, "leaf", "-CA", "ca.crt", "-CAkey", "ca.key")


class Secret:
    """A mounted Secret: tls.crt, tls.key and ca.crt are links into ..data, which is a link to a folder."""

    def __init__(self, folder, authority):
        folder.mkdir()
        self.folder, self.authority, self.versions = folder, authority, 0
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")
        self.renew("first")

    def put(self, cert, key):
        self.versions += 1
        version = self.folder / f"..{self.versions}"
        version.mkdir()
        for name, source in (("tls.crt", cert), ("tls.key", key), ("ca.crt", self.authority.folder / "ca.crt")):
            (version / name).write_bytes(source.read_bytes())
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").rename(self.folder / "..data")

    def renew(self, name):
        """The new certificate, DER."""
        cert, key = self.authority.issue(f"{self.folder.name}-{name}")
        self.put(cert, key)
        return ssl.PEM_cert_to_DER_cert(cert.read_text())

    def path(self, name):
        return str(self.folder / name)

    def flags(self, prefix, ca_flag):
        return [f"--{prefix}-cert-file", self.path("tls.crt"), f"--{prefix}-key-file", self.path("tls.key"),
                f"--{prefix}-{ca_flag}", self.path("ca.crt")]


def start_router(secret, engine, folder):
    """With TLS on both of its sides."""
    port = free_port()
    router = Router([engine.grpc], "--metrics-port", str(port), *secret.flags("tls", "client-ca-file"),
                    *secret.flags("replica-tls", "ca-file"), log=folder / "router.log")
    router.metrics_url = f"http://127.0.0.1:{port}"
    return router


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def client(authority):
    """The files of a client's certificate and key."""
    return authority.issue("client")


@pytest.fixture(scope="module")
def cluster(authority, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    secrets = Secret(folder / "engine", authority), Secret(folder / "router", authority)
    flags = ["--tp", "1", "--kv-cache-memory", "256MiB", *secrets[0].flags("tls", "client-ca-file")]
    with Cluster(*flags, command="engine") as engine:
        router = start_router(secrets[1], engine, folder)
        try:
            yield engine, router, *secrets
        finally:
            assert router.stop() == 0


def context_of(authority, pair=None):
    context = ssl.create_default_context(cafile=authority.folder / "ca.crt")
    if pair:
        context.load_cert_chain(*pair)
    return context


def certificate(port, context):
    """That of a new connection, DER."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            return secure.getpeercert(binary_form=True)


def page(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def openai_client(router, context):
    return openai.OpenAI(base_url=f"https://localhost:{router.http}/v1", api_key="none", max_retries=0,
                         http_client=openai.DefaultHttpxClient(verify=context))


def command(router, *words, scheme="https"):
    return subprocess.run([os.path.join(BIN, "flotilla"), *words, "--url", f"{scheme}://localhost:{router.http}"],
                          capture_output=True, text=True, check=False, timeout=120)


def test_peoples_commands_speak_tls(cluster, authority, client):
    router = cluster[1]
    cert, key = client
    tls = "--ca-file", authority.folder / "ca.crt", "--cert-file", cert, "--key-file", key
    asked = command(router, "ask", "What is the capital of France?", "--max-tokens", "16", *tls)
    assert asked.returncode == 0 and "Paris" in asked.stdout, asked.stderr
    shown = command(router, "top", "--once", *tls)
    assert shown.returncode == 0 and "1 replicas" in shown.stdout, shown.stderr
    measured = command(router, "bench", "serve", "--requests", "6", "--max-concurrency", "2", "--output-len", "8",
                       "--json", *tls)
    assert measured.returncode == 0 and json.loads(measured.stdout)["requests"] == 6, measured.stderr


def test_peoples_commands_say_why_tls_failed(cluster, authority, client):
    router = cluster[1]
    ca = "--ca-file", authority.folder / "ca.crt"
    unknown = command(router, "ask", "Hello")
    assert unknown.returncode == 1 and "its certificate is not trusted" in unknown.stderr
    assert "--ca-file" in unknown.stderr
    nobody = command(router, "ask", "Hello", *ca)  # without the certificate that this router demands
    assert nobody.returncode == 1 and "certificate required" in nobody.stderr
    plain = command(router, "top", "--once", scheme="http")
    assert plain.returncode == 1 and "400" in plain.stderr
    useless = command(router, "top", "--once", *ca, scheme="http")
    assert useless.returncode != 0 and "--ca-file is for a URL that begins with https://" in useless.stderr


def test_clients_with_a_certificate_are_served(cluster, authority, client):
    router = cluster[1]
    with openai_client(router, context_of(authority, client)) as api:
        model = api.models.list().data[0].id
        answer = api.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text


def test_others_are_not(cluster, authority, client, tmp_path):
    router = cluster[1]
    with openai_client(router, context_of(authority)) as api, pytest.raises(openai.APIConnectionError):
        api.models.list()
    stranger = Authority(tmp_path / "other")
    with openai_client(router, context_of(authority, stranger.issue("client"))) as api:
        with pytest.raises(openai.APIConnectionError):
            api.models.list()
    with openai_client(router, context_of(stranger, client)) as api, pytest.raises(openai.APIConnectionError):
        api.models.list()
    with pytest.raises(urllib.error.HTTPError) as error:
        page(f"http://127.0.0.1:{router.http}/v1/models")
    assert error.value.code == 400 and "HTTPS" in json.load(error.value)["error"]["message"]


def test_grpc(cluster, authority, client):
    engine, router = cluster[:2]
    files = authority.folder / "ca.crt", client[1], client[0]
    for credentials, served in ((grpc.ssl_channel_credentials(*(file.read_bytes() for file in files)), True),
                                (grpc.ssl_channel_credentials(files[0].read_bytes()), False)):
        for port in (router.grpc, int(engine.grpc.rsplit(":", 1)[1])):
            with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                if served:
                    assert health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == 1
                else:
                    with pytest.raises(grpc.RpcError) as error:
                        health.Check(health_pb2.HealthCheckRequest(), timeout=30)
                    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_probes_and_metrics_need_no_certificate(cluster):
    engine, router = cluster[:2]
    for url, process in ((engine.metrics_url.removesuffix("/metrics"), "scheduler"), (router.metrics_url, "router")):
        assert page(url + "/health/live") == "alive\n"
        assert page(url + "/health/ready") == "ready\n"
        for file in ("tls-cert-file", "tls-client-ca-file"):
            assert f'flotilla_{process}_certificate_expiry_timestamp_seconds{{file="{file}"' in page(url + "/metrics")


def test_certificates_change_under_a_stream(cluster, authority, client):
    engine, router, engine_secret, router_secret = cluster
    context = context_of(authority, client)
    engine_port = int(engine.grpc.rsplit(":", 1)[1])
    before = certificate(router.http, context)
    with openai_client(router, context) as api:
        model = api.models.list().data[0].id
        arguments = dict(model=model, prompt="Once upon a time", max_tokens=TOKENS, temperature=0,
                         extra_body={"ignore_eos": True})
        whole = api.completions.create(**arguments).choices[0].text
        stream = iter(api.completions.create(stream=True, **arguments))
        text = next(stream).choices[0].text
        new = router_secret.renew("second"), engine_secret.renew("second")
        assert before not in new
        for port, cert in ((router.http, new[0]), (router.grpc, new[0]), (engine_port, new[1])):
            wait_until(lambda port=port, cert=cert: certificate(port, context) == cert, 30, "it is used")
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == whole


def test_a_key_of_another_certificate_changes_nothing(cluster, authority, client):
    router, router_secret = cluster[1], cluster[3]
    context = context_of(authority, client)
    before = certificate(router.http, context)
    router_secret.put(authority.issue("one")[0], authority.issue("other")[1])
    # Of the files for clients, and of the same for replicas.
    wait_until(lambda: router.log.read_text().count(" is wrong, ") == 2, 30, "the router says so")
    assert certificate(router.http, context) == before
    renewed = router_secret.renew("third")
    wait_until(lambda: certificate(router.http, context) == renewed, 30, "the right pair is taken")
    lines = [line for line in router.log.read_text().splitlines() if " is wrong, " in line]
    assert len(lines) == 2 and all("is not the key of the certificate" in line for line in lines), lines


def test_a_wrong_file_is_one_line_that_names_the_flag(authority, client, tmp_path):
    cert, key = client
    missing = tmp_path / "none.crt"
    for flags, said in (
            (["--tls-cert-file", cert], "--tls-cert-file needs --tls-key-file"),
            (["--tls-cert-file", missing, "--tls-key-file", key], f"--tls-cert-file: can't read {missing}: No such"),
            (["--tls-cert-file", authority.folder / "ca.crt", "--tls-key-file", key],
             f"--tls-key-file: {key} is not the"),
            (["--tls-client-ca-file", cert], "--tls-client-ca-file needs --tls-cert-file"),
            (["--replica-tls-ca-file", key], f"--replica-tls-ca-file: {key} has no certificate in PEM")):
        run = subprocess.run([os.path.join(BIN, "flotilla-router"), "--replica", "127.0.0.1:1", "--port", "0",
                              "--grpc-port", "0", *map(str, flags)], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2
        assert run.stderr.startswith(f"flotilla-router: {said}") and run.stderr.count("\n") == 1, run.stderr
