"""The oracle: real clusters against the golden data.

  python run_oracle.py [--setups 1:512 2:16 …] [--concurrency 1 8] [--isa auto] [--dtype float32]

For each number of ranks and prefill chunk size a cluster is started, and the golden prompts are sent
over HTTP as token ids, one at a time and eight at once, each with a few greedy tokens after it, so
that decoding rows share steps with chunks of prompts. The logits are what rank 0 dumps while it runs
the scheduler's plans. Checked are
  * KL and top-1 of the prompts' positions against the reference (check_logits.py);
  * the logprobs and ranks in the answers against the reference;
  * that the steps were what the run is there for: cut into chunks, and mixed where requests overlap;
  * that the answers, and the logits of all positions in every bit, are the same in all runs;
  * that no process warned of anything: a run that recovered from an error is no proof.

All of it in float32: what the faster arithmetics are held against.

Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR (`./flotilla test` sets both), and about 550 MB for
the dump of one run, which is gone afterwards.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import check_logits
from logits_dump import Dump, DumpError
from setups import add_setups

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import MODEL, Cluster, ClusterError  # noqa: E402 - found by the line above

NEW_TOKENS = 8
EXTRA = NEW_TOKENS - 1  # the first new token is sampled at the prompt's last position
MAX_LOGPROB_ERROR = 1e-4  # nats; logprobs travel as fp32
PEER = Path(__file__).resolve().parent / "golden" / "llama_cpp.json"
PEER_FACTOR = 1.05  # times llama.cpp's mean KL


def peer_limits():
    """What int8 arithmetic may lose: llama.cpp's measured scores (run_precision.py) are the limit."""
    peer = json.loads(PEER.read_text())
    return {"min_margin": peer["margin"], "max_wrong": peer["wrong"],
            "max_mean_kl": PEER_FACTOR * peer["mean_kl"]}


@dataclass
class Run:
    name: str
    answers: list  # of each prompt
    digests: list  # of each prompt's logits


def ask(cluster, ids):
    """What a client can see of the numbers: text, generated ids and all logprobs."""
    answer = cluster.complete(prompt=ids, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True,
                              echo=True, logprobs=1, prompt_logprobs=0,
                              return_tokens_as_token_ids=True)
    choice = answer["choices"][0]
    return {"text": choice["text"], "tokens": choice["logprobs"]["tokens"],
            "token_logprobs": choice["logprobs"]["token_logprobs"],
            "top_logprobs": choice["logprobs"]["top_logprobs"],
            "prompt_logprobs": choice["prompt_logprobs"]}


def run_prompts(cluster, golden, concurrency):
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda ids: ask(cluster, ids), golden.ids))


def check_answers(golden, head, answers):
    """Problems of the answers' logprobs and ranks against the reference."""
    problems = []
    for name, ids, hidden, answer in zip(golden.names, golden.ids, golden.hidden, answers):
        if answer["tokens"][:len(ids)] != [f"token_id:{i}" for i in ids]:
            problems.append(f"{name}: the echoed ids are not the prompt's")
            continue
        if len(answer["tokens"]) != len(ids) + NEW_TOKENS:
            problems.append(f"{name}: {len(answer['tokens']) - len(ids)} new tokens")
        reference = check_logits.log_softmax(hidden[:-1].astype(np.float64) @ head.T)
        expected = reference[np.arange(len(ids) - 1), ids[1:]]
        echoed = np.array(answer["token_logprobs"][1:len(ids)])
        entries = [entry[str(i)] for entry, i in zip(answer["prompt_logprobs"][1:], ids[1:])]
        for what, values in (("echo", echoed), ("prompt_logprobs",
                                                np.array([e["logprob"] for e in entries]))):
            error = float(np.abs(values - expected).max())
            if not error <= MAX_LOGPROB_ERROR:
                problems.append(f"{name}: {what} is off by {error:.3g} nats")
        # Values this close to the token's own may fall on either side of it.
        close = 1e-3
        low = 1 + (reference > expected[:, None] + close).sum(axis=1)
        high = (reference >= expected[:, None] - close).sum(axis=1)
        ranks = np.array([e["rank"] for e in entries])
        if not ((low <= ranks) & (ranks <= high)).all():
            problems.append(f"{name}: ranks are not the reference's")
    return problems


def step_problems(steps, lengths, chunk, concurrency):
    """What is wrong with the modes of the steps that ran prompts of these lengths."""
    problems = []
    chunks = sum(lengths) // chunk if concurrency > 1 else sum(-(-n // chunk) for n in lengths)
    if steps["prefill"] + steps["mixed"] < chunks:
        problems.append(f"the prompts took {steps['prefill'] + steps['mixed']} steps, and have {chunks} chunks")
    if concurrency > 1 and steps["mixed"] == 0:
        problems.append("no step mixed chunks of prompts with decoding")
    return problems


def compare(golden, first, run):
    """Problems of a run that should equal the first."""
    problems = []
    for name, a, b, x, y in zip(golden.names, first.digests, run.digests, first.answers,
                                run.answers):
        if a != b:
            problems.append(f"{name}: the logits' bits are not those of {first.name}")
        problems += [f"{name}: {key} is not that of {first.name}" for key in x if x[key] != y[key]]
    return problems


class Oracle:
    def __init__(self, options, folder):
        self.options = options
        self.folder = Path(folder)
        self.golden = check_logits.Golden.load()
        self.head = check_logits.load_head(MODEL)
        self.first = None
        self.failures = 0

    def report(self, name, text, problems):
        self.failures += bool(problems)
        print(f"{name}: {text}", *(f"  FAILED: {p}" for p in problems), sep="\n", flush=True)

    def run_all(self):
        for isa, (tp, chunk) in itertools.product(self.options.isa, self.options.setups):
            self.run_cluster(isa, tp, chunk)
        return 1 if self.failures else 0

    def run_cluster(self, isa, tp, chunk):
        dump_path = self.folder / "logits"
        flags = ["--tp", str(tp), "--chunked-prefill-size", str(chunk), "--isa", isa,
                 "--dtype", self.options.dtype, f"--worker-flag=--logits-dump={dump_path}"]
        try:
            with Cluster(*flags) as cluster:
                for concurrency in self.options.concurrency:
                    name = f"isa {isa}, tp {tp}, chunk {chunk}, {concurrency} at once"
                    self.run_once(name, cluster, chunk, concurrency, dump_path)
        except ClusterError as error:
            self.report(f"isa {isa}, tp {tp}, chunk {chunk}", "the cluster failed", [str(error)])
        dump_path.unlink(missing_ok=True)

    def run_once(self, name, cluster, chunk, concurrency, dump_path):
        dump_path.write_bytes(b"")  # the worker appends
        before = cluster.steps()
        begin = time.monotonic()
        answers = run_prompts(cluster, self.golden, concurrency)
        seconds = time.monotonic() - begin
        steps = cluster.steps() - before
        problems = step_problems(steps, self.golden.lengths, chunk, concurrency)
        self.report(name, ", ".join(f"{count} steps {mode}" for mode, count in steps.items()), problems)
        try:
            self.check(name, answers, Dump(dump_path, len(self.head)), seconds)
        except DumpError as error:
            self.report(name, "the dump is unusable", [str(error)])

    def check(self, name, answers, dump, seconds):
        run = Run(name, answers, dump.digests(self.golden.lengths, EXTRA))
        rate = f"{sum(self.golden.lengths) / seconds:.0f} tok/s"
        problems = compare(self.golden, self.first, run) if self.first else []
        if self.first and not problems:
            # Equal in every bit to logits that were scored: the same score.
            self.report(name, f"answers and logits equal those of {self.first.name}; {rate}", [])
            return
        exact = self.options.dtype == "float32"
        limits = {} if exact else peer_limits()
        score = check_logits.score_dump(self.golden, self.head, dump, EXTRA, **limits)
        problems += score.problems()
        if exact:
            problems += check_answers(self.golden, self.head, answers)
        self.report(name, f"{score}; {rate}", problems)
        self.first = self.first or run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_setups(parser)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--isa", nargs="+", default=["auto"])
    parser.add_argument("--dtype", choices=["float32", "int8"], default="float32")
    options = parser.parse_args()
    if not MODEL:
        sys.exit("FLOTILLA_TEST_MODEL is not set; `./flotilla test` does so, or set it to "
                 "SmolLM2-135M-Instruct.Q4_1.gguf")
    with tempfile.TemporaryDirectory(prefix="flotilla-oracle-") as folder:
        return Oracle(options, folder).run_all()


if __name__ == "__main__":
    sys.exit(main())
