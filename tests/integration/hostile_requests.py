"""The hostile requests that a router must survive, each with the answer that docs/limits.md promises.

LIST has (name, send, expected): send(target) does the deed and returns what came back as an HTTP status or a
gRPC code's name; expected is that, or a set of what is allowed. Nothing here depends on timing but the
two that are slow on purpose.

    hostile_requests.py HOST PORT MODEL GRPC_ADDRESS

sends the whole list, again and again until a line comes on its standard input, and prints JSON: what was answered
otherwise than promised, and how often the list was gone through. A process of its own, as clients are.
"""

import json
import os
import random
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from test_grpc_client import Reflected

MIB = 1 << 20
TIMEOUT_S = 60


@dataclass
class Target:
    host: str
    port: int
    model: str
    rpc: object  # test_grpc_client.Reflected


def exchange(target, parts, read=True):
    """Sends raw bytes (an error while sending is fine: the server may have heard enough), reads the status."""
    with socket.create_connection((target.host, target.port), timeout=TIMEOUT_S) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:
            pass
        if not read:
            return None
        answer = b""
        try:
            while b"\r\n" not in answer:
                data = connection.recv(65536)
                if not data:
                    break
                answer += data
        except OSError:
            pass
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else None


def raw(*parts):
    return lambda target: exchange(target, parts)


def head(path="/v1/completions", *fields, method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(body, path="/v1/completions"):
    """A well-formed POST of these bytes, in which MODEL stands for the model's name."""
    def send(target):
        data = (body if isinstance(body, bytes) else body.encode()).replace(b"MODEL", target.model.encode())
        return exchange(target, [head(path, f"Content-Length: {len(data)}"), data])
    return send


def fields(path="/v1/completions", **values):
    return post(json.dumps({"model": "MODEL", **values}), path)


def completion(**values):
    return fields(**{"prompt": "x", "max_tokens": 1, **values})


def chat(**values):
    return fields("/v1/chat/completions",
                  **{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **values})


def chunked_flood(target):
    chunk = b"%x\r\n" % MIB + b"a" * MIB + b"\r\n"
    return exchange(target, [head("/v1/completions", "Transfer-Encoding: chunked")] + [chunk] * 100)


def generate(**values):
    """Generate over gRPC; values are set on the request's message."""
    def send(target):
        message = target.rpc.message("GenerateRequest")(text="x")
        message.stopping.max_tokens = 1
        for name, value in values.items():
            inner = message
            *path, last = name.split("__")
            for step in path:
                inner = getattr(inner, step)
            if isinstance(value, list):
                getattr(inner, last).extend(value)
            else:
                setattr(inner, last, value)
        try:
            list(target.rpc.call("Generate", message))
            return "OK"
        except grpc.RpcError as error:
            return error.code().name
    return send


NOISE = random.Random(7).randbytes(4096)
PREFIX = '{"model":"MODEL","max_tokens":1,"prompt":'

LIST = [
    # Bytes that are no HTTP.
    ("noise", raw(NOISE + b"\r\n\r\n"), 400),
    ("nothing but line ends", raw(b"\r\n\r\n\r\n"), 400),
    ("a TLS hello", raw(bytes.fromhex("160301020001") + os.urandom(507) + b"\r\n\r\n"), 400),
    ("HTTP/2's preface", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505),
    ("a version of the future", raw(b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n"), 505),
    ("no Host", raw(b"GET /v1/models HTTP/1.1\r\n\r\n"), 400),
    ("two Hosts", raw(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400),
    ("a folded header", raw(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: b\r\n\x01c\r\n\r\n"), 400),
    ("a NUL in a header", raw(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n"), 400),
    ("a space before the colon", raw(b"GET /v1/models HTTP/1.1\r\nHost : x\r\n\r\n"), 400),
    # Sizes, lengths, encodings.
    ("20,000 headers", raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n"), 431),
    ("a header of 1 MiB", raw(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * MIB + b"\r\n\r\n"), 431),
    ("a target of 100 KiB", raw(b"GET /" + b"a" * 102_400 + b" HTTP/1.1\r\nHost: x\r\n\r\n"), 431),
    ("100 MB announced", raw(head("/v1/completions", "Content-Length: 100000000")), 413),
    ("100 MB sent", raw(head("/v1/completions", "Content-Length: 100000000"), *[b"a" * MIB] * 95), 413),
    ("100 MB in chunks", chunked_flood, 413),
    ("a length below zero", raw(head("/v1/completions", "Content-Length: -1")), 400),
    ("a length of 2^70", raw(head("/v1/completions", f"Content-Length: {2**70}")), 400),
    ("two lengths", raw(head("/v1/completions", "Content-Length: 2", "Content-Length: 3"), b"{}"), 400),
    ("length and chunks", raw(head("/v1/completions", "Content-Length: 2", "Transfer-Encoding: chunked"),
                              b"2\r\n{}\r\n0\r\n\r\n"), 400),
    ("an encoding that is not chunks", raw(head("/v1/completions", "Transfer-Encoding: chunked, identity",
                                               "Content-Length: 2"), b"{}"), 400),
    ("no end to a body", raw(head("/v1/completions", "Transfer-Encoding: gzip"), b"GET / HTTP/1.1\r\n\r\n"), 400),
    ("a chunk size that is none", raw(head("/v1/completions", "Transfer-Encoding: chunked"), b"zz\r\n"), 400),
    ("no length", raw(head()), 411),
    ("an expectation nobody meets", raw(head("/v1/completions", "Content-Length: 2", "Expect: magic"), b"{}"), 417),
    ("text for JSON", raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
                          b"Content-Length: 2\r\n\r\n{}"), 415),
    ("a path that is none", raw(b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"), 404),
    ("a method that is none", raw(head(method="BREW")), 405),
    ("a header that stops", raw(b"POST /v1/completions HTTP/1.1\r\nHost:"), 408),
    ("a body that stops", raw(head("/v1/completions", "Content-Length: 100"), b'{"model":'), 408),
    # JSON.
    ("an empty body", post(b""), 400),
    ("no JSON", post("hello"), 400),
    ("null", post("null"), 400),
    ("an array", post("[]"), 400),
    ("NaN", post(PREFIX + '"x","temperature":NaN}'), 400),
    ("infinity", post(PREFIX + '"x","temperature":1e999}'), 400),
    ("100,000 arrays in each other", post(PREFIX + "[" * 100_000 + "]" * 100_000 + "}"), 400),
    ("33 objects in each other", post(PREFIX + '{"a":' * 33 + "1" + "}" * 33 + "}"), 400),
    ("a key twice", post(PREFIX + '"x","seed":1,"seed":2}'), 400),
    ("half a surrogate pair", post(PREFIX + '"\\ud800"}'), 400),
    ("bytes that are no UTF-8", post(PREFIX.encode() + b'"\xff\xfe"}'), 400),
    ("a raw control character", post(PREFIX.encode() + b'"a\x01b"}'), 400),
    ("escaped control characters", completion(prompt="a\u0000b\u0001c"), 200),
    # Fields.
    ("no prompt at all", fields(max_tokens=1), 400),
    ("an empty prompt", completion(prompt=""), 400),
    ("7 MB of prompt", completion(prompt="all work and no play " * 350_000), 400),
    ("a million token ids", completion(prompt=[5] * 1_000_000), 400),
    ("129 prompts", completion(prompt=["x"] * 129), 400),
    ("a token id below zero", completion(prompt=[-1]), 400),
    ("a token id beyond all", completion(prompt=[2**31 - 1]), 400),
    ("a billion choices", completion(n=10**9), 400),
    ("a billion candidates", completion(best_of=10**9), 400),
    ("max_tokens of 2^63", completion(max_tokens=2**63), 400),
    ("max_tokens below zero", completion(max_tokens=-5), 400),
    ("a hot temperature", completion(temperature="hot"), 400),
    ("a million logprobs", completion(logprobs=10**6), 400),
    ("100,000 biases", completion(logit_bias={str(i): 1 for i in range(100_000)}), 400),
    ("a bias for no token", completion(logit_bias={"x": 1}), 400),
    ("1,000 stop strings", completion(stop=["x"] * 1000), 400),
    ("a stop string of 10 KB", completion(stop="x" * 10_000), 400),
    ("an empty stop string", completion(stop=[""]), 400),
    ("100,000 stop tokens", completion(stop_token_ids=[1] * 100_000), 400),
    ("a model's name of 1 MB", post('{"prompt":"x","model":"' + "m" * 1_000_000 + '"}'), 404),
    ("a seed of 2^80", completion(seed=2**80), 400),
    # Chat.
    ("a template of the client's own", chat(chat_template="{% for a in range(99999) %}{% for b in range(99999) %}x"
                                           "{% endfor %}{% endfor %}"), 400),
    ("variables that replace the messages", chat(chat_template_kwargs={"messages": []}), 400),
    ("a million variables", chat(chat_template_kwargs={f"v{i}": i for i in range(200_000)}), {200, 400}),
    ("10,000 messages", chat(messages=[{"role": "user", "content": "x"}] * 10_000), 400),
    ("a robot speaks", chat(messages=[{"role": "robot", "content": "x"}]), 400),
    ("an image", chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]), 400),
    ("100,000 parts", chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]), 400),
    ("a message that is a number", chat(messages=[7]), 400),
    ("special tokens in a message", chat(messages=[{"role": "user", "content": "<|im_end|><|im_start|>x" * 5}]), 200),
    ("calls that are a number", chat(messages=[{"role": "assistant", "tool_calls": 7}]), 400),
    ("arguments that are no JSON", chat(messages=[{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "{"}}]}]), 200),
    # gRPC.
    ("gRPC: 9 MB of prompt", generate(text="x" * (9 * MIB)), "RESOURCE_EXHAUSTED"),
    ("gRPC: NaN", generate(sampling__temperature=float("nan")), "INVALID_ARGUMENT"),
    ("gRPC: infinity", generate(sampling__repetition_penalty=float("inf")), "INVALID_ARGUMENT"),
    ("gRPC: two billion choices", generate(sampling__n=2**31 - 1), "INVALID_ARGUMENT"),
    ("gRPC: a million stop tokens", generate(stopping__stop_token_ids=[1] * 1_000_000), "INVALID_ARGUMENT"),
    ("gRPC: a long request id", generate(request_id="i" * 1000), "INVALID_ARGUMENT"),
    ("gRPC: noise on the port", lambda target: grpc_noise(target), "closed"),
]


def grpc_noise(target):
    host, port = target.rpc.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0xFFFFFFFF) + NOISE)
            while connection.recv(65536):
                pass
        except OSError:
            pass
    return "closed"


SLOW = {"a header that stops", "a body that stops"}


def attack(target, stop):
    wrong, meanwhile = [], 0

    def send(entry):
        nonlocal meanwhile
        name, deed, expected = entry
        got = deed(target)
        if got not in (expected if isinstance(expected, set) else {expected}):
            wrong.append(f"{name}: {got} instead of {expected}")
        meanwhile += not stop.is_set()

    rounds = 0
    with ThreadPoolExecutor(len(SLOW)) as pool:
        while rounds == 0 or not stop.is_set():
            waiting = [pool.submit(send, entry) for entry in LIST if entry[0] in SLOW]
            for entry in LIST:
                if entry[0] not in SLOW and not (rounds and stop.is_set()):
                    send(entry)
            for job in waiting:
                job.result()
            rounds += 1
    return {"wrong": wrong, "rounds": rounds, "meanwhile": meanwhile}


def main():
    host, port, model, grpc_address = sys.argv[1:]
    stop = threading.Event()
    target = Target(host, int(port), model, Reflected(grpc_address))
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    print(json.dumps(attack(target, stop)))


if __name__ == "__main__":
    main()
