"""What structured output costs: tokens a second with and without a schema, in turns on one cluster.

    FLOTILLA_TEST_MODEL=… python tests/bench/structured_bench.py [--clients 32] [--rounds 5] [--of schema|thought]

Both sides make the same number of tokens (the schema asks for more than max_tokens let through), so the
ratio is the cost of masks: making, sending and applying them. Rounds alternate; each ratio is of two
neighbours, and the median is printed beside the limit.
"""

import argparse
import pathlib
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from cluster import LONG_COMPILE, NO_DRAFTS, Cluster  # noqa: E402 - found by the line above

LEAST_RATIO = 0.95
TOKENS = 128
PERSON = {"type": "object", "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "maxItems": 4, "items": {"enum": ["red", "green", "blue"]}}}}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 100}
# What comes before an answer of a schema: any text, and it is not over in so many tokens.
THOUGHT = {"format": {"type": "sequence", "elements": [
    {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"},
    {"type": "json_schema", "json_schema": SCHEMA}]}}
OF = {"schema": {"json": SCHEMA}, "thought": {"structural_tag": THOUGHT}}


def tokens_a_second(cluster, clients, **fields):
    def one(i):
        answer = cluster.complete(prompt=f"List {i} of people as JSON:", max_tokens=TOKENS, temperature=0.8, seed=i,
                                  ignore_eos=True, **fields)
        return answer["usage"]["completion_tokens"]

    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(one, range(clients * 2)))
    assert tokens == clients * 2 * TOKENS
    return tokens / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--of", choices=OF, default="schema", help="what the tokens are part of")
    args = parser.parse_args()
    structured = {"structured_outputs": OF[args.of]}
    ratios = []
    with Cluster("--kv-cache-memory", "512MiB", LONG_COMPILE, *NO_DRAFTS) as cluster:
        tokens_a_second(cluster, args.clients, **structured)
        for _ in range(args.rounds):
            free = tokens_a_second(cluster, args.clients)
            masked = tokens_a_second(cluster, args.clients, **structured)
            again = tokens_a_second(cluster, args.clients)
            ratios.append(masked / ((free + again) / 2))
            print(f"free {free:.1f} and {again:.1f} tok/s, structured {masked:.1f} tok/s: {ratios[-1]:.3f}", flush=True)
    ratio = statistics.median(ratios)
    print(f"median {ratio:.3f}, limit {LEAST_RATIO}")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
