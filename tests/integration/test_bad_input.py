"""Bad input gets one clear message and a non-zero exit or a 4xx; everything else goes on."""

import os
import socket
import subprocess

import pytest
from cluster import BIN, MODEL


def refused(*flags, timeout_s=60, status=2):
    """Runs `serve` that must refuse to start, for ever (2) or for now (1); returns its message."""
    done = subprocess.run(
        [os.path.join(BIN, "flotilla"), "serve", "--grpc-port", "0", *flags],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )
    assert done.returncode == status, done
    assert "ready" not in done.stdout
    return done.stderr


def test_no_such_model():
    assert "/no/such.gguf" in refused("--port", "0", "--model", "/no/such.gguf")


def test_not_a_model(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_text("These are notes.")
    message = refused("--port", "0", "--model", str(path))
    assert "GGUF" in message and str(path) in message


def test_truncated_model(tmp_path):
    path = tmp_path / "half.gguf"
    with open(MODEL, "rb") as file:
        path.write_bytes(file.read(40_000_000))
    message = refused("--port", "0", "--model", str(path))
    assert "truncated" in message or "bytes" in message


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("--port", str(port), "--model", MODEL, status=1)
    assert str(port) in message and "--port" in message


def test_too_little_memory():
    message = refused("--port", "0", "--model", MODEL, "--kv-cache-memory", "1MiB")
    assert "--kv-cache-memory" in message


def test_too_many_ranks():
    message = refused("--port", "0", "--model", MODEL, "--tp", "10")
    assert "--tp: 10 ranks" in message and "9 query heads" in message


@pytest.mark.parametrize("flag,value", [("--tp", "x"), ("--port", "70000"), ("--isa", "mmx"), ("--bogus", "1"),
                                        ("--kv-cache-memory", "lots"), ("--max-queued-requests", "0"),
                                        ("--page-size", "512")])
def test_bad_flags(flag, value):
    assert flag in refused("--model", MODEL, flag, value)
