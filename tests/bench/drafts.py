"""Tokens a second of one client with drafts and without, alternately, on the same replica's twin.

  python tests/bench/drafts.py [--rounds 7] [--tokens 256] [--draft-tokens 8] [--repetition-penalty 1] [--model FILE.gguf]

Each task is asked of a cluster without drafts and of one with them, in turn. "limit" is what drafts could bring if a step
with one took no longer than a step without: tokens over steps. "share" is the gain over that limit. Answers must be equal.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from cluster import MODEL, Cluster  # noqa: E402 - found by the line above

CODE = (ROOT / "scheduler_proc/core/page_allocator.cc").read_text()[:1500]
RECORD = {"type": "object", "required": ["first_name", "last_name", "year_of_birth", "profession"],
          "additionalProperties": False, "properties": {
              "first_name": {"type": "string"}, "last_name": {"type": "string"},
              "year_of_birth": {"type": "integer", "minimum": 1000, "maximum": 2000},
              "profession": {"enum": ["painter", "writer", "composer", "scientist", "other"]}}}
TASKS = {
    "quote": {"prompt": f"Repeat this text word for word.\n\nText: {CODE}\n\nRepeated text: "},
    "edit": {"prompt": f"Here is a file.\n\n{CODE}\n\nThe same file, with Alloc called Take:\n\n"},
    "list": {"prompt": "Countries and their capitals.\n"
                       "Country: France, capital: Paris\nCountry: Italy, capital: Rome\nCountry:"},
    "records": {"prompt": "Famous people, as JSON: ",
                "structured_outputs": {"json": {"type": "array", "minItems": 40, "items": RECORD}}},
    "story": {"prompt": "Once upon a time, in a village by the sea,"},
}


def metric(cluster, name):
    return cluster.metric(f"flotilla_scheduler_{name}")


def ask(cluster, body):
    begin = time.monotonic()
    text = cluster.complete(**body)["choices"][0]["text"]
    return text, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--repetition-penalty", type=float, default=1)
    parser.add_argument("--model", default=MODEL)
    args = parser.parse_args()
    print("| task | temperature | tokens/s without | with | gain | limit | share | right of drafted |\n"
          "|---|---|---|---|---|---|---|---|")
    with Cluster("--speculative-num-draft-tokens", "0", model=args.model) as plain, \
            Cluster("--speculative-num-draft-tokens", str(args.draft_tokens), model=args.model) as drafting:
        for task, fields in TASKS.items():
            for temperature in (0, 0.7):
                body = fields | {"max_tokens": args.tokens, "temperature": temperature, "seed": 1, "ignore_eos": True,
                                 "repetition_penalty": args.repetition_penalty}
                texts = {ask(cluster, body)[0] for cluster in (plain, drafting)}  # and the prompt is cached
                names = ("spec_decode_draft_tokens_total", "spec_decode_accepted_tokens_total")
                before, steps = [metric(drafting, name) for name in names], sum(drafting.steps().values())
                rates, gains = {plain: [], drafting: []}, []
                for _ in range(args.rounds):
                    for cluster in (plain, drafting):
                        text, seconds = ask(cluster, body)
                        texts.add(text)
                        rates[cluster].append(args.tokens / seconds)
                    gains.append(rates[drafting][-1] / rates[plain][-1])
                if len(texts) != 1:
                    sys.exit(f"error: {task} at {temperature} has {len(texts)} answers")
                drafted, right = (metric(drafting, name) - value for name, value in zip(names, before))
                limit = args.tokens * args.rounds / (sum(drafting.steps().values()) - steps)
                gain = statistics.median(gains)
                print(f"| {task} | {temperature} | {statistics.median(rates[plain]):.0f} | "
                      f"{statistics.median(rates[drafting]):.0f} | {gain:.2f} | {limit:.2f} | {gain / limit:.0%} | "
                      f"{right:.0f} of {drafted:.0f} |", flush=True)


if __name__ == "__main__":
    main()
