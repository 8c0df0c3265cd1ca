"""One hash for all: the same requests give the same token ids and the same logprob bits in every setup.

  python matrix.py --pairwise        a sample in which every two settings meet (minutes; in CI with --requests 16)
  python matrix.py --full            all 486 cells (90 minutes)
  python matrix.py --full --part 2/4 the second quarter of them
  python matrix.py --full --part 3/4 --expect HASH   the third, whose hash must be the one that another part printed
  python matrix.py --pairwise --kv-cache-dtype int8
  python matrix.py --cell tp=2,at_once=7,chunk=16,cache=cold,pool=tiny,overlap=off

A cell is: ranks × requests at once × prefill chunk × prefix cache (off; cold; warm: the second time the
same requests come) × KV cache (large; tiny, so that requests are retracted) × overlap
(on; off; drafts: on, with drafts of up to 16 tokens, which the others have none of). In each run 32 requests (or
--requests): prompts of 5 to 1,200 tokens, some sharing prefixes, 64 tokens out, half of them greedy and half at
temperature 0.8 with a seed; some of either half with penalties, logit bias, stop strings, n = 2, a JSON schema or
a regular expression to follow, some with top-p and top-k. All ask for the most likely tokens at each place, some
for those of their prompt too.

Needs FLOTILLA_TEST_MODEL and FLOTILLA_BIN_DIR (`./flotilla test` sets both). The exit status is 1 if a hash
differs from the first cell's or from --expect's, if a tiny cache led to no retraction in any of three tries (the
threads decide in which order requests arrive), a warm one to no hit, prompts were not cut into chunks or mixed with
decoding, or any process complained.
"""

import argparse
import hashlib
import itertools
import json
import random
import re
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import LONG_COMPILE, Cluster, ClusterError  # noqa: E402 - found by the line above

AXES = {
    "tp": [1, 2, 3],
    "at_once": [1, 7, 32],
    "chunk": [16, 64, 512],
    "pool": ["large", "tiny"],
    "overlap": ["on", "off", "drafts"],
    "cache": ["off", "cold", "warm"],  # last: a warm cell follows its cold one, and one cluster runs both
}
NEW_TOKENS = 64
CONTEXT = 1280
# Tiny: one request of the longest kind, or a few short ones, and none of the output reserved at admission, so
# that it runs out again and again.
TINY_TOKENS = 1280
TOKEN_BYTES = {"bfloat16": 23040, "int8": 12240}
TINY_FLAGS = ["--scheduler-flag=--init-new-token-ratio=0", "--scheduler-flag=--min-new-token-ratio-factor=0",
              "--scheduler-flag=--new-token-ratio-decay-steps=1"]


def pool_flags(pool, kv):
    if pool == "large":
        return ["--kv-cache-memory", "1GiB"]
    return ["--kv-cache-memory", str(TINY_TOKENS * TOKEN_BYTES[kv]), *TINY_FLAGS]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
        "kind": {"enum": ["cat", "dog", "fish"]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
PATTERN = "([A-Z][a-z]{2,8} (and|or) ){3,5}[0-9]{2}"


def make_requests(count, seed=11):
    """The same list always: `count` bodies of /v1/completions."""
    rng = random.Random(seed)
    vocabulary = range(1000, 40000)
    shared = [rng.choices(vocabulary, k=300) for _ in range(3)]
    # The longest early, then the shortest: a tiny KV cache has room for their prompts but not for their output.
    lengths = [5, 1200] + sorted([17, 64] + [int(5 * 240 ** rng.random()) for _ in range(count - 4)])
    bodies = []
    for i, length in enumerate(lengths):
        prefix = shared[i % 3][: rng.randrange(length)] if i % 2 else []
        body = {
            "prompt": prefix + rng.choices(vocabulary, k=length - len(prefix)),
            "max_tokens": NEW_TOKENS,
            "logprobs": 3,
            "return_token_ids": True,
            "temperature": 0 if (i ^ i >> 3) & 1 else 0.8,  # by other bits than the features below
            "seed": i,
            "ignore_eos": i % 5 != 0,
        }
        if i % 4 == 1:
            body |= {"frequency_penalty": 0.7, "repetition_penalty": 1.2}
        if i % 8 == 2:
            body |= {"presence_penalty": 1.0, "logit_bias": {"28": 3, "198": -100}}
        if i % 6 == 3:
            body |= {"stop": [" the", "\n\n"]}
        if i % 7 == 4:
            body |= {"top_p": 0.9, "top_k": 50}
        if i % 8 == 6:
            body |= {"n": 2}
        if i % 10 == 4:
            body |= {"prompt_logprobs": 2}
        if i % 8 in (0, 7):
            body |= {"structured_outputs": {"json": SCHEMA} if i % 16 < 8 else {"regex": PATTERN}}
        bodies.append(body)
    return bodies


def digest_of(body, answer):
    """Of one answer's choices: token ids, text and reason of the end, and the bits of all logprobs that the
    request asks for: of the sampled tokens, of the most likely ones beside them, and of its prompt."""
    hasher = hashlib.sha256()

    def add(text, logprobs=()):
        hasher.update(f"{len(text)} {len(logprobs)} {text}".encode() + struct.pack(f"<{len(logprobs)}f", *logprobs))

    def check(what, entries, wanted):
        if len(entries) != wanted:
            raise ClusterError(f"{len(entries)} {what} for {wanted} tokens")

    if len(answer["choices"]) != body.get("n", 1):
        raise ClusterError(f"{len(answer['choices'])} choices for n = {body.get('n', 1)}")
    for choice in answer["choices"]:
        ids, logprobs = choice["token_ids"], choice["logprobs"]
        hasher.update(struct.pack(f"<{len(ids)}i", *ids))
        check("logprobs", logprobs["token_logprobs"], len(ids))
        add(choice["text"] + choice["finish_reason"], logprobs["token_logprobs"])
        check("top_logprobs", logprobs["top_logprobs"], len(ids))
        for top in logprobs["top_logprobs"]:
            add(json.dumps(list(top)), list(top.values()))
        if "prompt_logprobs" not in body:
            continue
        check("prompt_logprobs", choice["prompt_logprobs"], len(body["prompt"]))
        for entry in choice["prompt_logprobs"][1:]:  # nothing is known of the first
            add(json.dumps([(key, value["rank"]) for key, value in entry.items()]),
                [value["logprob"] for value in entry.values()])
    return hasher.hexdigest()


def run_cells(cells, bodies, kv):
    """For each of the cells, which one cluster runs in turn: (digests of all answers, retractions, tokens read from
    the cache, steps by mode, seconds)."""
    first = cells[0]
    flags = ["--tp", str(first["tp"]), "--chunked-prefill-size", str(first["chunk"]), "--context-length",
             str(CONTEXT), "--kv-cache-dtype", kv, *pool_flags(first["pool"], kv), LONG_COMPILE]
    if first["cache"] == "off":
        flags.append("--disable-radix-cache")
    if first["overlap"] == "off":
        flags.append("--disable-overlap")
    flags += ["--speculative-num-draft-tokens", "16" if first["overlap"] == "drafts" else "0"]
    begin = time.monotonic()
    with Cluster(*flags) as cluster, ThreadPoolExecutor(first["at_once"]) as pool:

        def counts():
            return [cluster.metric(f"flotilla_scheduler_{name}_total") for name in ("retractions", "cached_tokens")]

        if first["cache"] == "warm":
            list(pool.map(lambda body: cluster.complete(**body), bodies))
        for _ in cells:
            before, steps_before = counts(), cluster.steps()
            digests = list(pool.map(lambda body: digest_of(body, cluster.complete(**body)), bodies))
            retractions, cached = (after - earlier for after, earlier in zip(counts(), before))
            steps = cluster.steps() - steps_before
            if cluster.metric("flotilla_scheduler_kv_pages_unaccounted") != 0:
                raise ClusterError("KV pages are unaccounted for")
            accepted = cluster.metric("flotilla_scheduler_spec_decode_accepted_tokens_total")
            if (accepted > 0) != (first["overlap"] == "drafts") and first["at_once"] == 1:
                raise ClusterError(f"{accepted} tokens of drafts were accepted")
            now = time.monotonic()
            yield digests, retractions, cached, steps, now - begin
            begin = now


def by_cluster(cells):
    """The cells in lists that one cluster runs: a warm one right behind its cold one."""
    groups = []
    for cell in cells:
        if groups and cell["cache"] == "warm" and groups[-1][-1] == cell | {"cache": "cold"}:
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups


def pairwise(axes):
    """Few cells in which every two values of different axes meet: greedy, always the same."""
    names = list(axes)
    missing = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]
    }
    everything = [dict(zip(names, values)) for values in itertools.product(*axes.values())]

    def pairs(cell):
        return set(itertools.combinations(cell.items(), 2))

    cells = []
    while missing:
        best = max(everything, key=lambda cell: len(pairs(cell) & missing))
        cells.append(best)
        missing -= pairs(best)
    return cells


def name_of(cell):
    return ",".join(f"{key}={value}" for key, value in cell.items())


TRIES = 3  # of cells in which something had to be retracted, and was not


def runs_of(group, bodies, kv):
    """Each run of the group's cells: the cell, what run_cells says of it, and whether a retraction was wanted to the end."""
    for attempt in range(1, TRIES + 1):
        lacking = False
        # run_cells first: zip asks it once more at the end, and so it stops its cluster and hears complaints.
        for outcome, cell in zip(run_cells(group, bodies, kv), group):
            retractions = outcome[1]
            lacks = cell["pool"] == "tiny" and cell["at_once"] > 1 and retractions == 0
            lacking |= lacks
            yield cell, outcome, lacks and attempt == TRIES
        if not lacking:
            return


def complaints_about(cell, bodies, retractions, cached, steps):
    found = []
    if cell["pool"] == "large" and retractions > 0:
        found.append(f"{retractions:.0f} retractions with a large KV cache")
    if cell["cache"] == "off" and cached > 0:
        found.append(f"{cached:.0f} tokens read from a cache that is off")
    in_prompts = sum(len(body["prompt"]) for body in bodies)
    if cell["cache"] == "warm" and cell["pool"] == "large" and cached < 0.75 * in_prompts:
        found.append(f"only {cached:.0f} of {in_prompts} tokens read from a warm cache")
    chunks = (in_prompts - cached) / cell["chunk"]
    if steps["prefill"] + steps["mixed"] < chunks:
        found.append(f"{steps['prefill'] + steps['mixed']} steps for {chunks:.1f} chunks of prompts")
    if cell["pool"] == "large" and cell["at_once"] > 1 and steps["mixed"] == 0:
        found.append("no step mixed chunks of prompts with decoding")
    return found


def run(cells, bodies, kv, wanted):
    """The number of cells that differ. wanted: the hash that each must have; None: any."""
    expected, bad = None, 0
    for cell, (digests, retractions, cached, steps, seconds), never_retracted in (
            run for group in by_cluster(cells) for run in runs_of(group, bodies, kv)):
        expected = expected or digests
        different = [i for i, digest in enumerate(digests) if digest != expected[i]]
        found = complaints_about(cell, bodies, retractions, cached, steps)
        if never_retracted:
            found.append("the tiny KV cache forced no retraction")
        if different:
            found.append(f"requests {different} differ from the first cell's")
        total = hashlib.sha256("".join(digests).encode()).hexdigest()[:16]
        if wanted not in (None, total):
            found.append(f"not the hash {wanted}")
        print(f"[{cells.index(cell) + 1}/{len(cells)}] {total} {name_of(cell)}: {retractions:.0f} retractions, "
              f"{cached:.0f} cached tokens, {steps['mixed']} mixed steps, {seconds:.1f} s"
              f"{''.join('  FAILED: ' + f for f in found)}", flush=True)
        bad += bool(found)
    return bad


def parse_cell(text):
    values = dict(part.split("=", 1) for part in text.split(","))
    cell = {}
    for name, allowed in AXES.items():
        by_text = {str(value): value for value in allowed}
        if values.get(name) not in by_text:
            sys.exit(f"error: --cell needs {name}, one of {', '.join(by_text)}")
        cell[name] = by_text[values[name]]
    return cell


def parse_part(text):
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2/4")
    return int(number) - 1, int(parts)


def parse_hash(text):
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a hash as this program prints it")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pairwise", action="store_true")
    what.add_argument("--full", action="store_true")
    what.add_argument("--cell", action="append", type=parse_cell, help="may be given several times")
    parser.add_argument("--kv-cache-dtype", choices=TOKEN_BYTES, default="bfloat16")
    parser.add_argument("--requests", type=int, default=32, metavar="N")
    parser.add_argument("--part", type=parse_part, default=(0, 1), help="of --full, as 2/4")
    parser.add_argument("--expect", type=parse_hash, metavar="HASH", help="that all cells must have")
    args = parser.parse_args()
    if args.requests < 16:
        parser.error("--requests: each kind of request is among the first 16")
    if args.full:
        cells = [dict(zip(AXES, values)) for values in itertools.product(*AXES.values())]
        first, last = (len(cells) * part // args.part[1] for part in (args.part[0], args.part[0] + 1))
        cells = cells[first:last]
        if not cells:
            parser.error(f"--part: no cell of 486 is in part {args.part[0] + 1} of {args.part[1]}")
    else:
        cells = args.cell or pairwise(AXES)
    bad = run(cells, make_requests(args.requests), args.kv_cache_dtype, args.expect)
    print(f"{len(cells) - bad} of {len(cells)} cells agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
