"""Compares logits dumps of workers with the golden data, or with each other.

  python check_logits.py MODEL.gguf DUMP…      mean KL, largest KL and top-1 of each dump
  python check_logits.py --equal MODEL.gguf DUMP DUMP…   equal in every bit?

Reference logits are the golden hidden states times the dequantised head, in fp64. KL is that of the
reference's distribution to the dump's, in nats, in fp64. Exit status 0: all within the limits.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from logits_dump import Dump, DumpError

GOLDEN = Path(__file__).resolve().parent / "golden" / "smollm2_hidden.npz"
MAX_MEAN_KL = 1e-6
MIN_MARGIN = 0.01  # nats (a difference of logits): where the reference leads by more, top-1 is equal
MIN_POSITIONS = 2000
TILE = 128  # positions at a time: 128 × 49152 × 8 B = 50 MB


@dataclass
class Golden:
    names: list
    lengths: list
    ids: list     # of each prompt
    hidden: list  # of each prompt, fp32 [tokens, hidden_size]

    @classmethod
    def load(cls, path=GOLDEN):
        with np.load(path) as data:
            lengths = data["lengths"].tolist()
            cuts = np.cumsum(lengths)[:-1]
            return cls(data["names"].tolist(), lengths,
                       [i.tolist() for i in np.split(data["ids"], cuts)],
                       np.split(data["hidden"], cuts))


def load_head(model_path):
    """The output head [vocabulary, hidden_size] in fp64."""
    tensors = {t.name: t for t in gguf.GGUFReader(model_path).tensors}
    tensor = tensors.get("output.weight", tensors["token_embd.weight"])
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


@dataclass
class Score:
    min_margin: float = MIN_MARGIN
    max_mean_kl: float = MAX_MEAN_KL
    max_wrong: int = 0
    positions: int = 0
    sum_kl: float = 0.0
    max_kl: float = 0.0
    max_kl_at: str = ""
    decided: int = 0      # positions where the reference's margin exceeds min_margin
    wrong: int = 0        # of these, another top-1 in the dump
    other_top1: int = 0   # of all
    max_error: float = 0  # of a logit

    @property
    def mean_kl(self):
        return self.sum_kl / max(self.positions, 1)

    def problems(self):
        found = []
        if self.positions < MIN_POSITIONS:
            found.append(f"{self.positions} positions, fewer than {MIN_POSITIONS}")
        if not self.mean_kl <= self.max_mean_kl:  # also for NaN
            found.append(f"mean KL {self.mean_kl:.3g} exceeds {self.max_mean_kl:.3g}")
        if self.wrong > self.max_wrong:
            found.append(f"top-1 differs at {self.wrong} positions with a margin over "
                         f"{self.min_margin}, more than {self.max_wrong}")
        return found

    def __str__(self):
        return (f"{self.positions} positions, mean KL {self.mean_kl:.3g}, max KL {self.max_kl:.3g} "
                f"({self.max_kl_at}), top-1 equal at {self.decided - self.wrong} of {self.decided} "
                f"decided and {self.positions - self.other_top1} of all, "
                f"largest logit error {self.max_error:.3g}")


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def add_tile(score, name, begin, reference, logits):
    """Adds positions begin… of prompt `name`: fp64 [positions, vocabulary] each."""
    expected = log_softmax(reference)
    kl = (np.exp(expected) * (expected - log_softmax(logits))).sum(axis=1)
    score.positions += len(kl)
    score.sum_kl += float(kl.sum())
    worst = int(np.argmax(kl))
    if not kl[worst] <= score.max_kl:
        score.max_kl, score.max_kl_at = float(kl[worst]), f"{name}:{begin + worst}"
    top = np.partition(reference, -2, axis=1)[:, -2:]
    decided = top[:, 1] - top[:, 0] > score.min_margin
    other = reference.argmax(axis=1) != logits.argmax(axis=1)
    score.decided += int(decided.sum())
    score.wrong += int((decided & other).sum())
    score.other_top1 += int(other.sum())
    score.max_error = max(score.max_error, float(np.abs(reference - logits).max()))


def score_dump(golden, head, dump, extra=0, **limits):
    """The prompts' positions; the `extra` generated ones have no reference. limits: as Score's."""
    score = Score(**limits)
    sequences = dump.match(golden.lengths, extra)
    for name, hidden, sequence in zip(golden.names, golden.hidden, sequences):
        for begin in range(0, len(hidden), TILE):
            reference = hidden[begin:begin + TILE].astype(np.float64) @ head.T
            records = sequence[begin:begin + len(reference)]
            logits = np.stack([dump.logits(r) for r in records]).astype(np.float64)
            add_tile(score, name, begin, reference, logits)
    return score


def compare_bits(golden, dumps):
    """Names of dumps and prompts whose logits are not those of the first dump in every bit."""
    first = dumps[0].digests(golden.lengths)
    return [f"{dump.path}: {name}" for dump in dumps[1:]
            for name, a, b in zip(golden.names, first, dump.digests(golden.lengths)) if a != b]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--equal", action="store_true", help="only compare the dumps' bits")
    parser.add_argument("model")
    parser.add_argument("dumps", nargs="+")
    options = parser.parse_args()
    golden = Golden.load()
    head = load_head(options.model)
    failed = False
    try:
        dumps = [Dump(path, head.shape[0]) for path in options.dumps]
        if options.equal:
            differences = compare_bits(golden, dumps)
            print("\n".join(differences) or f"equal bits in {len(dumps)} dumps")
            return 1 if differences else 0
        for dump in dumps:
            score = score_dump(golden, head, dump)
            problems = score.problems()
            failed = failed or bool(problems)
            print(f"{dump.path}: {score}", *(f"FAILED: {p}" for p in problems), sep="\n  ")
    except DumpError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
