"""`flotilla bench` on the real model: what it counts and that no row is missing. Figures are nobody's
business here: others may use the machine."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from cluster import BIN, MODEL, SANITIZED, Cluster, children_of, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import plots  # noqa: E402 - found by the line above

KERNELS = {"gemm", "gate_up", "attention", "norm_quantize", "sampler", "forward"}


def bench(*args, timeout=900):
    return subprocess.run([os.path.join(BIN, "flotilla"), "bench", *args], capture_output=True, text=True,
                          timeout=timeout)


def offline(*args):
    return ["offline", "--model", MODEL, "--kv-cache-memory", "256MiB", *args]


def test_offline_answers_every_request_in_full():
    run = bench(*offline("--requests", "4", "--input-len", "20", "--output-len", "40:60", "--seed", "3", "--json"))
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    assert figures["requests"] == 4
    assert figures["prompt_tokens"] == 80
    assert 160 <= figures["output_tokens"] <= 240
    assert 1 <= figures["max_running_requests"] <= 4
    assert figures["max_kv_usage"] is None or 0 < figures["max_kv_usage"] < 1  # null: too short to be reported
    total = figures["total_tokens_per_second"] * figures["seconds"]
    assert total == pytest.approx(figures["prompt_tokens"] + figures["output_tokens"])
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
        assert 0 < figures[name]["p50"] <= figures[name]["p99"] < figures["seconds"] + 1


def test_offline_prints_a_table_of_the_same_lengths():
    run = bench(*offline("--requests", "2", "--input-len", "7", "--output-len", "3", "--disable-overlap",
                         "--page-size", "8"))
    assert run.returncode == 0, run.stderr
    assert re.search(r"^prompt_tokens +14$", run.stdout, re.M)
    assert re.search(r"^output_tokens +6$", run.stdout, re.M)


def test_offline_refuses_what_can_not_run():
    for args, named in ((["--input-len", "9:1"], "--input-len"),
                        (["--output-len", "100000"], "--output-len"),
                        (["--max-running-requests", "0"], "--max-running-requests")):
        run = bench(*offline(*args))
        assert run.returncode == 2, run.stderr
        assert named in run.stderr


def test_offline_ends_with_its_replica_when_interrupted():
    process = subprocess.Popen([os.path.join(BIN, "flotilla"), "bench",
                                *offline("--requests", "64", "--input-len", "300", "--output-len", "300")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        launcher = wait_until(lambda: list(children_of(process.pid)), 60, "a replica")[0]
        wait_until(lambda: "flotilla-worker" in " ".join(children_of(launcher).values()), 60, "a worker")
        replica = [launcher, *children_of(launcher)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == "" and "stopped" in err
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in replica), 30, "the replica's end")


def served(url, *args):
    return bench("serve", "--url", url, "--input-len", "9", "--output-len", "6", *args)


def test_serve_measures_a_running_server(tmp_path):
    with Cluster() as cluster:
        run = served(cluster.http, "--requests", "12", "--max-concurrency", "3", "--shared-prefix", "64", "--json",
                     "--goodput", "e2el:600000", "--label", "here")
        assert run.returncode == 0, run.stderr
        figures = json.loads(run.stdout)
        assert (figures["label"], figures["c"], figures["requests"], figures["failed"]) == ("here", 3, 12, 0)
        assert figures["prompt_tokens"] == 12 * 73 and figures["output_tokens"] == 12 * 6
        assert figures["cached_tokens"] >= 64 * (12 - 3), "the prefix, but for those that came first"
        assert figures["good"] == 12
        assert 0 < figures["ttft_p50"] <= figures["ttft_p99"] <= figures["e2el_p99"] < figures["seconds"] * 1000 + 1
        # What plots.py draws.
        loads = tmp_path / "load.jsonl"
        loads.write_text(run.stdout)
        assert ("here", "out_tok_s") in plots.read_loads(loads.read_text().splitlines())
        run = served(cluster.http, "--requests", "5", "--request-rate", "20")
        assert run.returncode == 0, run.stderr
        assert "5 requests answered" in run.stdout and re.search(r"^ttft +\d", run.stdout, re.M)
        run = served(cluster.http, "--requests", "2", "--model", "no-such")
        assert run.returncode == 1
        assert "2 failed" in run.stdout and "no-such" in run.stdout


def test_serve_says_what_was_answered_when_interrupted():
    with Cluster() as cluster:
        process = subprocess.Popen([os.path.join(BIN, "flotilla"), "bench", "serve", "--url", cluster.http,
                                    "--requests", "1000", "--request-rate", "1", "--output-len", "2"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: sum(v for k, v in cluster.metrics().items()
                                   if k.startswith("flotilla_router_requests_total")) > 0, 60, "a request")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130, err
        assert "requests answered" in out


def test_serve_needs_a_server():
    run = served("http://127.0.0.1:1")
    assert run.returncode == 1 and "can't reach 127.0.0.1:1" in run.stderr
    assert served("ftp://x").returncode == 2
    assert served("http://127.0.0.1:1", "--goodput", "x:1").returncode == 2


@pytest.mark.skipif(SANITIZED, reason="its shares would be those of the sanitizer")
def test_roofline_has_every_row(tmp_path):
    path = tmp_path / "roofline.json"
    run = bench("roofline", "--quick", "--model", MODEL, "--json", str(path))
    assert run.returncode == 0, run.stderr
    report = json.loads(path.read_text())
    assert report["machine"]["cpu"] and report["machine"]["commit"]
    assert report["machine"]["model"] == os.path.basename(MODEL)
    flags = open("/proc/cpuinfo").read()
    isas = [one["isa"] for one in report["runs"]]
    # A system may keep tiles from a process.
    assert [isa for isa in isas if isa != "amx"] == (["avx512"] if "avx512bw" in flags else []) + ["avx2"]
    assert "amx" not in isas[1:] and ("amx" not in isas or "amx_int8" in flags)
    for one in report["runs"]:
        for limits in one["limits"].values():
            assert all(limits[name] > 0 for name in
                       ("read_gb_s", "int8_4bit_gops", "int8_8bit_gops", "fp32_gflops"))
        assert (one["limits"]["all_threads"]["bf16_gflops"] > 0) == (
            one["isa"] in ("amx", "avx512") and "avx512_bf16" in flags)
        rows = one["rows"]
        assert {row["kernel"] for row in rows} == KERNELS
        for name in ("q+k+v Q4_1 960x576", "o Q4_1 576x576", "gate+up Q4_1 3072x576", "down Q4_1 576x1536"):
            tokens = [row["tokens"] for row in rows if row["name"] == name]
            assert tokens == [1, 4, 8, 32, 128, 512], name
        assert [row["tokens"] for row in rows if row["name"] == "embed_tokens Q8_0 49152x576"] == [1, 4, 8, 32]
        assert [row["name"] for row in rows if row["kernel"] == "attention"] == [
            "prefill 512 at 8192", "decode 1 at 8192", "decode 64 at 192", "decode 64 at 2048",
            "mix: decode 32 at 512, prefill 256 at 1024"]
        assert [row["name"] for row in rows if row["kernel"] == "forward"] == [
            "decode 1 at 192", "decode 8 at 192", "decode 32 at 192", "prefill 512",
            "prefill 4 x 128, one step", "prefill 4 x 128, four steps"]
        for row in rows:
            assert 0 < row["share"] < 1.5, row
            assert 0 < row["best_us"] <= row["median_us"], row
            assert row["name"] in run.stdout
            assert row["bound"] in ("read", "int8", "fp32")
        # One token at a time, reading the weights is what takes long; many tokens at a time, computing.
        bound = {(row["name"], row["tokens"]): row["bound"] for row in rows}
        assert bound["gate+up Q4_1 3072x576", 1] == "read"
        assert bound["gate+up Q4_1 3072x576", 512] == "int8"


def test_quality_compares_each_arithmetic(tmp_path):
    path, text = tmp_path / "quality.json", tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20, encoding="utf-8")
    run = bench("quality", "--model", MODEL, "--text", str(text), "--tokens", "90", "--context-length", "64",
                "--json", str(path))
    assert run.returncode == 0, run.stderr
    report = json.loads(path.read_text())
    assert report["tokens"] == 90 and report["windows"] == 2
    rows = {(row["activations"], row["kv_cache"]): row for row in report["rows"]}
    reference = rows.pop(("float32", "float32"))
    assert reference["mean_kl"] == 0 and reference["top1"] == 1
    assert {("float32", "bfloat16"), ("int8", "bfloat16"), ("int8", "float32")} <= set(rows)
    for (activations, kv), row in rows.items():
        assert row["positions"] == 90
        assert 0 < row["mean_kl"] < (0.05 if activations == "int8" else 1e-2)
        assert row["mean_kl"] <= row["max_kl"]
        assert row["perplexity"] == pytest.approx(reference["perplexity"], rel=0.1)
        assert f"{row['mean_kl']:.2e}" in run.stdout


def test_quality_ends_when_interrupted():
    process = subprocess.Popen([os.path.join(BIN, "flotilla"), "bench", "quality", "--model", MODEL],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # The compute threads are there: it has begun.
        wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1, 60, "compute threads")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == "" and "stopped" in err


def test_quality_refuses_what_it_can_not_read():
    for args, named in ((["--text", "/nowhere"], "--text"), (["--context-length", "100000"], "--context-length"),
                        (["--llama-logits", "/nowhere"], "--llama-logits")):
        run = bench("quality", "--model", MODEL, *args)
        assert run.returncode == 2, run.stderr
        assert named in run.stderr


def test_bench_says_what_there_is():
    assert {"roofline", "offline", "quality", "fit"} <= set(bench("--help").stdout.split())
    assert "no benchmark 'nothing'" in bench("nothing").stderr
    assert "how to read it" in bench("roofline", "--help").stdout.lower()
