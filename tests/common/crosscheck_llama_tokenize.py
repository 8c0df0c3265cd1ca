"""Our tokenizer against llama-server's /tokenize on 500 lines of this machine (`test --full`).

    python tests/common/crosscheck_llama_tokenize.py --tool TOKENIZE_TOOL --model MODEL.gguf

Environment: LLAMA_SERVER, the llama-server to ask. Without it, tests/bench/build_llama.sh builds one,
once. llama.cpp classifies characters with its own tables, which lag Unicode, so lines with characters
newer than Python's own tables are left out; so are bytes for which the vocabulary has no token, which
it drops at another point than the tokenizers library does.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata

import golden_lines
import golden_tokenizer
import tokenizer_live_test

NUM_LINES = 500
NUM_EDGE_LINES = 100
START_SECONDS = 60
BUILD_LLAMA = pathlib.Path(__file__).resolve().parents[1] / "bench" / "build_llama.sh"


def build_server():
    """The path of llama-server, built if it is not there yet."""
    run = subprocess.run([BUILD_LLAMA], check=True, stdout=subprocess.PIPE, text=True)
    return os.path.join(run.stdout.strip(), "llama-server")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket: no port to collide with another test's."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def ask(self, method, path, body=None):
        self.request(method, path, body and json.dumps(body),
                     {"Content-Type": "application/json"})
        response = self.getresponse()
        return response.status, json.loads(response.read() or b"{}")


@contextlib.contextmanager
def running_server(binary, model):
    """A connection to a llama-server that has loaded `model`."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/llama.sock"
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                [binary, "--model", model, "--host", path, "--ctx-size", "256", "--no-warmup",
                 "--parallel", "1", "--threads", "1"], stdout=log, stderr=log)
        try:
            yield wait_until_ready(process, path, f"{folder}/log")
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_until_ready(process, path, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = UnixConnection(path)
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            if connection.ask("GET", "/health")[0] == 200:
                return connection
        connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    raise SystemExit("llama-server did not start:\n" + pathlib.Path(log).read_text()[-2000:])


def choose_lines(reference):
    known = {b[0] for b, kind in zip(reference.bytes, reference.types)
             if len(b) == 1 and kind == golden_tokenizer.NORMAL}
    def comparable(line):
        return (line and set(line.encode()) <= known and
                all(unicodedata.category(c) not in ("Cn", "Co") for c in line))
    edges = filter(comparable, golden_lines.edge_lines(4000, reference.special_tokens()))
    lines = [line for line, _ in zip(edges, range(NUM_EDGE_LINES))]
    lines += list(filter(comparable, golden_lines.machine_lines(4000)))[:NUM_LINES - len(lines)]
    if len(lines) < NUM_LINES:  # a bare machine: generated lines instead
        lines += list(edges)[:NUM_LINES - len(lines)]
    assert len(lines) == NUM_LINES
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--model", default=os.environ.get("FLOTILLA_TEST_MODEL"))
    arguments = parser.parse_args()
    if not arguments.model:
        raise SystemExit("set FLOTILLA_TEST_MODEL or give --model; `./flotilla test` does so")
    os.environ["FLOTILLA_TOKENIZE_TOOL"] = arguments.tool
    binary = os.environ.get("LLAMA_SERVER") or build_server()

    lines = choose_lines(golden_tokenizer.Reference(arguments.model))
    tool = tokenizer_live_test.Tool(arguments.model)
    ours = tool.encode(lines)
    tool.close()
    different = 0
    with running_server(binary, arguments.model) as server:
        for line, ids in zip(lines, ours):
            status, answer = server.ask("POST", "/tokenize", {"content": line})
            if status != 200 or answer["tokens"] != ids:
                different += 1
                print(f"{line!r}\n  ours  {ids}\n  theirs {answer}")
    print(f"{len(lines)} lines, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
