"""The oracle of all architectures: clusters on small random checkpoints against transformers.

  python run_models.py [--only NAME …] [--gguf [GEMMA3.gguf]] [--tp 1 2 4] [--chunk 16 512]

make_random_checkpoints.py writes the model folders and transformers' logits, in a venv of its own
that is made where it is missing. Then each model is served in float32 and asked for the prompts, all
at once; what rank 0 dumps must have a mean KL of at most 1e-9 to the reference, and must be the same
in every bit for all numbers of ranks and sizes of chunks. --gguf: that file instead, whose reference
make_gguf_reference.py computes; without a name it is $FLOTILLA_TEST_GEMMA (Gemma 3 270M, Q4_K_M).

Needs FLOTILLA_BIN_DIR (`./flotilla test` sets it).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import check_logits
import regenerate
from logits_dump import Dump, DumpError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from cluster import Cluster, ClusterError  # noqa: E402 - found by the line above

VENV = regenerate.ROOT / ".cache" / "models-venv"
NEW_TOKENS = 4
EXTRA = NEW_TOKENS - 1  # the first new token is sampled at the prompt's last position
MAX_MEAN_KL = 1e-9  # a thousandth of what the oracle asks of the default model; 1e-12 was seen
MIN_SPREAD = 0.3  # nats of entropy below a uniform distribution: logits that say something


@dataclass
class Reference:
    lengths: list
    ids: list     # of each prompt
    logits: list  # of each prompt, [tokens, vocabulary]

    @classmethod
    def load(cls, path):
        with np.load(path) as data:
            cuts = np.cumsum(data["lengths"])[:-1]
            return cls(data["lengths"].tolist(),
                       [ids.tolist() for ids in np.split(data["ids"], cuts)],
                       np.split(data["logits"], cuts))

    def spread(self):
        """Mean of log(vocabulary) less the entropy."""
        log_p = check_logits.log_softmax(np.concatenate(self.logits).astype(np.float64))
        return float(np.log(log_p.shape[1]) + (np.exp(log_p) * log_p).sum(axis=1).mean())


def ask(cluster, ids):
    cluster.complete(prompt=ids, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True,
                     prompt_logprobs=0)


def run_cluster(model, reference, tp, chunk):
    """The dump of one cluster, and the scores."""
    with tempfile.TemporaryDirectory(prefix="flotilla-models-") as scratch:
        path = Path(scratch) / "logits"
        flags = ["--tp", str(tp), "--chunked-prefill-size", str(chunk), "--dtype", "float32",
                 "--context-length", "512",  # ranks that share a kv head hold it each
                 f"--worker-flag=--logits-dump={path}"]
        # A base model's GGUF has no chat template, of which the scheduler warns.
        with Cluster(*flags, model=str(model), disturbed=model.suffix == ".gguf") as cluster:
            path.write_bytes(b"")  # the worker appends, and has run its own probe
            with ThreadPoolExecutor(len(reference.ids)) as pool:
                list(pool.map(lambda ids: ask(cluster, ids), reference.ids))
        dump = Dump(path, reference.logits[0].shape[1])
        score = check_logits.Score()
        for expected, sequence in zip(reference.logits, dump.match(reference.lengths, EXTRA)):
            logits = np.stack([dump.logits(r) for r in sequence[:len(expected)]])
            check_logits.add_tile(score, f"{len(expected)} tokens", 0, expected.astype(np.float64),
                                  logits.astype(np.float64))
        return score, dump.digests(reference.lengths, EXTRA)


def check(model, path, options):
    """Whether a model folder or file passed against the reference at `path`."""
    name, reference = model.name, Reference.load(path)
    first, passed = None, True
    for tp in options.tp:  # all models have four query heads, Gemma one kv head
        for chunk in options.chunk:
            problems = []
            try:
                score, digests = run_cluster(model, reference, tp, chunk)
                first = first or digests
                if score.positions != sum(reference.lengths):
                    problems.append(f"{score.positions} positions")
                if not score.mean_kl <= MAX_MEAN_KL:
                    problems.append(f"mean KL {score.mean_kl:.3g}")
                if score.wrong:
                    problems.append(f"top-1 differs at {score.wrong} decided positions")
                if digests != first:
                    problems.append("the bits are not those of the first run")
            except (ClusterError, DumpError) as error:
                score, problems = "the run failed", [str(error)]
            if not reference.spread() >= MIN_SPREAD:
                problems.append("the reference's distributions are flat: the KL says nothing")
            print(f"{name}, tp {tp}, chunk {chunk}: {score}", *(f"  FAILED: {p}" for p in problems),
                  sep="\n", flush=True)
            passed = passed and not problems
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--gguf", type=Path, nargs="?", const=Path(os.environ.get("FLOTILLA_TEST_GEMMA", "")))
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--chunk", type=int, nargs="+", default=[16, 512])
    options = parser.parse_args()
    if options.gguf and not options.gguf.is_file():
        sys.exit("--gguf names no file; without a name FLOTILLA_TEST_GEMMA must be one's path")
    python = regenerate.make_venv(VENV, HERE / "models_requirements.txt", debian_packages=False)
    with tempfile.TemporaryDirectory(prefix="flotilla-checkpoints-") as scratch:
        folder = Path(scratch)
        if options.gguf:
            path = folder / "reference.npz"
            subprocess.run([python, HERE / "make_gguf_reference.py", options.gguf, path], check=True)
            return 0 if check(options.gguf, path, options) else 1
        subprocess.run([python, HERE / "make_random_checkpoints.py", folder], check=True)
        names = options.only or sorted(path.stem for path in folder.glob("*.npz"))
        results = [check(folder / name, folder / f"{name}.npz", options) for name in names]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
