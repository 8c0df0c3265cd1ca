#!/usr/bin/env python3
"""transformers on the GPU with the model of gpu.py: one sequence, and many at once with answers of one length.

  python3 tests/bench/gpu_transformers.py FOLDER [--requests 256] [--tokens 128]

Prints one line of JSON: seconds a token of one sequence, tokens a second of all. Needs torch and transformers; exit
status 77 without them. bfloat16, scaled-dot-product attention, the library's own loop.
"""

import argparse
import json
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(77)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16).cuda().eval()
    generator = torch.Generator().manual_seed(1)

    def seconds(count, new_tokens):
        ids = torch.randint(300, 100_000, (count, 128), generator=generator).cuda()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=new_tokens,
                                 max_new_tokens=new_tokens, do_sample=True, temperature=0.6, top_k=0, pad_token_id=0)
        torch.cuda.synchronize()
        assert out.shape[1] == 128 + new_tokens
        return time.perf_counter() - begin

    seconds(1, 8)
    one = seconds(1, args.tokens)
    seconds(args.requests, 4)
    many = seconds(args.requests, args.tokens)
    print(json.dumps({"versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
                      "seconds_a_token": one / args.tokens, "tokens_a_second": args.requests * args.tokens / many,
                      "requests": args.requests, "tokens": args.tokens}))


if __name__ == "__main__":
    main()
