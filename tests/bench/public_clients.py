#!/usr/bin/env python3
"""Load generators of others, unmodified, on a cluster of ours: each request must succeed, and what they count must be what
our /metrics counts.

  tests/bench/public_clients.py                     NVIDIA's aiperf
  tests/bench/public_clients.py aiperf guidellm     and the vLLM project's guidellm, which brings PyTorch: 6 GB

They come from PyPI, once, each into a venv of its own in .cache/. Both stream chat completions, 8 at a time, with the
model's own tokenizer, a folder of Hugging Face's files that is made from the GGUF.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from checkout import DEFAULT_MODEL, ROOT

os.environ.setdefault("FLOTILLA_TEST_MODEL", DEFAULT_MODEL)
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("common", "oracle", "support")]
import golden_tokenizer  # noqa: E402 - found by the line above
from cluster import MODEL, Cluster  # noqa: E402
from regenerate import make_venv  # noqa: E402

REQUESTS, STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 8, 120, 24
CHAT = "/v1/chat/completions"
CLIENT_TIMEOUT_S = 600


def write_tokenizer(folder):
    reference = golden_tokenizer.Reference(MODEL)
    folder.mkdir()
    reference.tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": reference.chat_template,
              "bos_token": reference.tokens[reference.get("bos_token_id")],
              "eos_token": reference.tokens[reference.get("eos_token_id")]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def run(name, argv, folder):
    """The client's command NAME, of its venv."""
    requirements = pathlib.Path(__file__).with_name(f"{name}_requirements.txt")
    venv = make_venv(ROOT / f".cache/{name}-venv", requirements, debian_packages=False).parent
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(folder / "hf"), "HOME": str(folder), "COLUMNS": "150"}
    done = subprocess.run([venv / name, *map(str, argv)], cwd=folder, env=os.environ | quiet, timeout=CLIENT_TIMEOUT_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{name}: exit status {done.returncode}:\n{done.stdout[-8000:]}"


def aiperf(cluster, folder):
    out = folder / "aiperf"
    run("aiperf", ["profile", "--model", cluster.model_id, "--url", cluster.http, "--endpoint-type", "chat", "--streaming",
                   "--tokenizer", folder / "tokenizer", "--apply-chat-template", "--concurrency", STREAMS,
                   "--request-count", REQUESTS, "--synthetic-input-tokens-mean", PROMPT_TOKENS,
                   "--output-tokens-mean", OUTPUT_TOKENS, "--extra-inputs", "ignore_eos:true", "--random-seed", 1,
                   "--server-metrics", cluster.metrics_url, "--no-gpu-telemetry", "--artifact-dir", out, "--ui", "none"],
        folder)
    report = json.loads((out / "profile_export_aiperf.json").read_text())
    assert not report["error_summary"] and report["request_error_rate"]["avg"] == 0, report["error_summary"]
    # It reads our metrics page, too.
    scraped = (out / "server_metrics_export.json").read_text()
    assert "flotilla_scheduler_generation_tokens" in scraped and "flotilla_router_requests" in scraped
    prompt = report["total_usage_prompt_tokens"]["avg"]
    # It makes prompts of so many tokens together with the chat template, by its own count.
    assert prompt == REQUESTS * PROMPT_TOKENS, f"our usage has {prompt} prompt tokens"
    return (report["request_count"]["avg"], prompt, report["total_usage_completion_tokens"]["avg"],
            report["output_token_throughput"]["avg"])


def guidellm(cluster, folder):
    out = folder / "guidellm.json"
    run("guidellm", ["run", "--backend", f"kind=openai_http,target={cluster.http}",
                     "--profile", f"kind=concurrent,streams={STREAMS}",
                     "--constraint", f"kind=max_requests,count={REQUESTS}",
                     "--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}",
                     "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
                     "--output", f"kind=json,path={out}", "--disable-console-interactive"], folder)
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    assert totals["errored"] == totals["incomplete"] == 0, totals
    prompt, output = (metrics[f"{kind}_token_count"]["successful"]["total_sum"] for kind in ("prompt", "output"))
    return totals["successful"], prompt, output, metrics["output_tokens_per_second"]["successful"]["mean"]


CLIENTS = {"aiperf": aiperf, "guidellm": guidellm}


def counted(cluster):
    """Ours: chat completions that were answered with 200, their prompts' tokens, tokens generated."""
    metrics = cluster.metrics()
    answered = sum(value for key, value in metrics.items() if key.startswith("flotilla_router_requests_total{")
                   and f'route="{CHAT}"' in key and 'code="200"' in key)
    return answered, *(cluster.metric(f"flotilla_scheduler_{kind}_tokens_total") for kind in ("prompt", "generation"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", default=["aiperf"], help=" or ".join(CLIENTS))
    args = parser.parse_args()
    if unknown := set(args.clients) - CLIENTS.keys():
        parser.error(f"no client {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="flotilla-clients-") as temporary:
        folder = pathlib.Path(temporary)
        write_tokenizer(folder / "tokenizer")
        for name in args.clients:
            with Cluster("--replicas", "2", "--kv-cache-memory", "256MiB") as cluster:
                *theirs, rate = CLIENTS[name](cluster, folder)
                ours = counted(cluster)
            assert tuple(theirs) == ours and ours[0] == REQUESTS, f"{name} counts {theirs}, our metrics {ours}"
            print(f"{name}: {ours[0]:.0f} requests, {ours[1]:.0f} prompt tokens, {ours[2]:.0f} output tokens as our metrics "
                  f"have them; {rate:.0f} output tokens a second")


if __name__ == "__main__":
    main()
