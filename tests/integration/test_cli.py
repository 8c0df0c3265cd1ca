"""What people type into a terminal, against a real cluster: `flotilla ask`, `chat` and `top`."""

import os
import pty
import re
import select
import socket
import subprocess
import time

import pytest
from cluster import BIN, MODEL, Cluster, free_port

FLOTILLA = os.path.join(BIN, "flotilla")
SYSTEM = "You are a helpful assistant."


@pytest.fixture(scope="module")
def cluster():
    with Cluster("--kv-cache-memory", "256MiB") as cluster:
        yield cluster


def answer_of(cluster, *messages, max_tokens=24):
    body = {"model": cluster.model_id, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
    return cluster.call("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def chat(cluster, lines, *flags):
    return subprocess.run([FLOTILLA, "chat", "--url", cluster.http, "--max-tokens", "24", *flags],
                          input="".join(line + "\n" for line in lines), capture_output=True, text=True, timeout=120)


def test_ask_gives_the_apis_answer(cluster):
    run = subprocess.run([FLOTILLA, "ask", "--url", cluster.http, "--max-tokens", "24", "Name three colours."],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout == answer_of(cluster, system(SYSTEM), user("Name three colours.")) + "\n"


def test_a_conversation_is_remembered(cluster):
    first = answer_of(cluster, system(SYSTEM), user("Name three colours."))
    second = answer_of(cluster, system(SYSTEM), user("Name three colours."), assistant(first), user("And a fourth?"))
    run = chat(cluster, ["Name three colours.", "", "And a fourth?"])
    assert run.returncode == 0, run.stderr
    assert run.stdout == first + "\n" + second + "\n"


def test_commands(cluster):
    poet = "You answer in rhymes."
    rhymed = answer_of(cluster, system(poet), user("Name three colours."))
    run = chat(cluster, ["Hello", f"/system {poet}", "/reset", "Name three colours.", "/nix", "/exit", "not said"])
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("\n" + rhymed + "\n") or run.stdout == rhymed + "\n"
    assert "/reset" in run.stderr, "an unknown command is answered with help"


def test_a_refused_turn_is_as_if_not_said(cluster):
    first = answer_of(cluster, system(SYSTEM), user("Name three colours."))
    run = chat(cluster, ["word " * 20000, "Name three colours."])
    assert run.returncode == 0
    assert "flotilla: error:" in run.stderr and "context" in run.stderr
    assert run.stdout == first + "\n"


def test_chat_without_a_server_says_so():
    run = subprocess.run([FLOTILLA, "chat", "--url", "http://127.0.0.1:1"], input="Hello\n", capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 1 and "can't reach 127.0.0.1:1" in run.stderr


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *argv):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(argv[0], argv)
        self.text = ""

    def read_until(self, pattern, timeout_s=60):
        end = time.monotonic() + timeout_s
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:  # the program has ended
                    assert re.search(pattern, self.text), self.text
        self.text = ""

    def write(self, text):
        os.write(self.fd, text.encode())

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_ends_an_answer_and_then_the_conversation(cluster):
    terminal = Terminal(FLOTILLA, "chat", "--url", cluster.http, "--max-tokens", "2000")
    terminal.read_until("> ")
    terminal.write("Tell me a very long story about the sea, with many chapters.\n")
    terminal.read_until(r"chapters\.\r\n\S+ \S+")  # the answer has begun
    terminal.write("\x03")
    terminal.read_until("> ")
    terminal.write("/exit\n")
    assert terminal.wait() == 0
    os.close(terminal.fd)

    terminal = Terminal(FLOTILLA, "chat", "--url", cluster.http)
    terminal.read_until("> ")
    terminal.write("\x03")
    assert terminal.wait() == -2, "at the prompt it ends the program"
    os.close(terminal.fd)


def test_top_once_and_at_a_terminal(cluster):
    cluster.complete(prompt="Hi", max_tokens=4)
    run = subprocess.run([FLOTILLA, "top", "--url", cluster.http, "--interval", "0.2"], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode == 0, run.stderr
    assert re.search(rf"^r0 +{cluster.model_id[:24]} +ready ", run.stdout, re.M)
    assert re.search(r"^req_\S+ +(length|stop) ", run.stdout, re.M)
    assert "\x1b" not in run.stdout

    terminal = Terminal(FLOTILLA, "top", "--url", cluster.http, "--interval", "0.2")
    terminal.read_until(r"r0[^\n]* ready ")
    terminal.read_until(r"\x1b\[H[^\x1b]*replicas")  # and again
    terminal.write("\x03")
    terminal.read_until(r"\x1b\[\?1049l")  # what was there before is back
    assert terminal.wait() == 0
    os.close(terminal.fd)


def test_top_without_a_router_says_so():
    run = subprocess.run([FLOTILLA, "top", "--url", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "can't reach 127.0.0.1:1" in run.stderr


def test_doctor_says_what_stands_in_the_way():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run([os.path.join(BIN, "flotilla"), "doctor", "--model", MODEL, "--port", str(port), "--grpc-port",
                              "0", "--metrics-port", str(free_port())], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines() if not line.startswith((" ", "NUMA", "huge")))
    assert lines["ports"].startswith(f"port {port} is in use; choose another with --port (0: any free one); ")
    assert lines["ports"].endswith(" can be had")
    assert "--device cuda" in lines["GPUs"]
    assert re.search(r"available.*; SmolLM2-135M-Instruct needs \S+ \w+ \(weights 92.1 MiB, KV cache 512 MiB, processes 300 MiB\)",
                     lines["memory"])


def test_doctor_says_what_to_do_about_memory():
    run = subprocess.run([os.path.join(BIN, "flotilla"), "doctor", "--model", MODEL, "--kv-cache-memory", "900GiB"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    [memory] = [line for line in run.stdout.splitlines() if line.startswith("memory ")]
    assert memory.endswith("or lower --kv-cache-memory, to 181MiB at least")
