"""Embeddings of real clusters against transformers.

  python run_embeddings.py [--setups 1:512 2:16 …] [--concurrency 1 8] [--dtype float32 int8]

The golden hidden states (make_golden.py: transformers in fp32) pooled in float64 are the reference:
the last one, and the mean over all. For each number of ranks and prefill chunk size a cluster embeds
the golden prompts, as token ids, one at a time and eight at once, with decoding beside them and
twice, so that `last` reads the prefix cache. Checked are
  * the cosine with the reference: at least MIN_COSINE;
  * that normalised embeddings have length 1 and the direction of the others;
  * that every embedding of an arithmetic is the same in all its runs, in every bit.

Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR (`./flotilla test` sets both).
"""

import argparse
import base64
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import check_logits
from setups import add_setups

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import MODEL, Cluster  # noqa: E402 - found by the line above

POOLINGS = ("last", "mean")
MIN_COSINE = {"float32": 0.9999, "int8": 0.999}  # int8: 0.99970 was seen, of the worst


def reference(hidden, pooling):
    hidden = hidden.astype(np.float64)
    return hidden[-1] if pooling == "last" else hidden.mean(axis=0)


def embed(cluster, ids, pooling, normalize):
    answer = cluster.call("POST", "/v1/embeddings", {
        "model": cluster.model_id, "input": ids, "pooling": pooling, "normalize": normalize,
        "encoding_format": "base64"})
    return np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def embed_all(cluster, golden, concurrency):
    """(prompt, pooling) → the raw and the normalised embedding, while others decode."""
    jobs = list(itertools.product(range(len(golden.ids)), POOLINGS))
    with ThreadPoolExecutor(concurrency + 1) as pool:
        beside = pool.submit(cluster.complete, prompt="Once", max_tokens=64, ignore_eos=True)
        found = list(pool.map(lambda job: [embed(cluster, golden.ids[job[0]], job[1], normalize)
                                           for normalize in (False, True)], jobs))
        beside.result()
    return dict(zip(jobs, found))


def check(golden, found, min_cosine):
    problems, worst = [], 1.0
    for (index, pooling), (raw, unit) in found.items():
        name = f"{golden.names[index]}, {pooling}"
        value = cosine(raw, reference(golden.hidden[index], pooling))
        worst = min(worst, value)
        if not value >= min_cosine:
            problems.append(f"{name}: cosine {value:.6f} with transformers")
        if abs(float(np.linalg.norm(unit.astype(np.float64))) - 1) > 1e-6:
            problems.append(f"{name}: the normalised embedding has not length 1")
        if cosine(raw, unit) < 1 - 1e-9:
            problems.append(f"{name}: the normalised embedding has another direction")
    return worst, problems


def differing(golden, first, found):
    return [f"{golden.names[index]}, {pooling}: not the bits of the first run"
            for (index, pooling), pair in found.items()
            if any(a.tobytes() != b.tobytes() for a, b in zip(pair, first[index, pooling]))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_setups(parser)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", nargs="+", choices=list(MIN_COSINE), default=list(MIN_COSINE))
    options = parser.parse_args()
    if not MODEL:
        sys.exit("FLOTILLA_TEST_MODEL is not set; `./flotilla test` does so")
    golden = check_logits.Golden.load()
    first, failed = {}, False
    for dtype, (tp, chunk) in itertools.product(options.dtype, options.setups):
        with Cluster("--tp", str(tp), "--chunked-prefill-size", str(chunk), "--dtype", dtype) as cluster:
            for concurrency in options.concurrency:
                found = embed_all(cluster, golden, concurrency)
                worst, problems = check(golden, found, MIN_COSINE[dtype])
                problems += differing(golden, first.setdefault(dtype, found), found)
                failed = failed or bool(problems)
                print(f"{dtype}, tp {tp}, chunk {chunk}, {concurrency} at once: least cosine {worst:.7f}",
                      *(f"  FAILED: {p}" for p in problems), sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
