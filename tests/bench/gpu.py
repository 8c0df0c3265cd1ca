#!/usr/bin/env python3
"""All figures of one GPU in one run: throughput, one stream, graphs beside eager steps, long and short sequences, each
kernel beside its limit (gpu_kernels), and transformers on the same model if the python has it.

  ./flotilla bench gpu                     on a machine with a GPU; builds with nvcc first, some 20 minutes in all
  tests/bench/gpu.py --out FILE            the figures as Markdown (default: docs/performance-gpu.md)
  tests/bench/gpu.py --device cpu --quick  the same commands, small, on the CPU: whether they work

The model is made here: Qwen3-0.6B's shape (28 layers, 1,024 wide, 151,936 tokens) with random weights in bfloat16, 1.2 GB
in the cache, and again with 8-bit floats; speed does not depend on them. Its tokenizer is no real one. Each row is a `flotilla bench offline` of its
own, so it starts an engine, and says what that took. The limits beside the figures are those of one H200.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

from checkout import CACHE, ROOT, commit

QWEN3_06B = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1024, "max_position_embeddings": 4096}
BLOCK_VALUES = 1 << 20


def bfloat16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def tensors_of(shape):
    """Name → dimensions, as a checkpoint of transformers has them."""
    hidden, head = shape["hidden_size"], shape["head_dim"]
    q, kv, ffn = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head, shape["intermediate_size"]
    found = {"model.embed_tokens.weight": (shape["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(shape["num_hidden_layers"]):
        layer = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                 "self_attn.o_proj": (hidden, q), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
                 "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
                 "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        found |= {f"model.layers.{i}.{name}.weight": dims for name, dims in layer.items()}
    return found


def byte_characters():
    """GPT-2's spelling of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def make_model(folder, shape, float8):
    """Random weights: one block of them again and again, each tensor from another place of it on. float8: the layers'
    matrices are 8-bit floats, with a factor each."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rng = random.Random(7)
    block = b"".join(struct.pack("<H", bfloat16(rng.gauss(0, 0.02))) for _ in range(BLOCK_VALUES))
    # Signs, exponents from 1/32 to 2, fractions.
    block8 = bytes(rng.randrange(2) << 7 | rng.randrange(0x10, 0x48) for _ in range(BLOCK_VALUES))
    ones = struct.pack("<H", bfloat16(1.0))
    header, offset = {}, 0
    tensors = tensors_of(shape)
    matrices = [name for name, dims in tensors.items() if len(dims) == 2 and "embed" not in name] if float8 else []
    tensors |= {f"{name}_scale": () for name in matrices}
    for name, dims in tensors.items():
        kind, width = ("F8_E4M3", 1) if name in matrices else ("F32", 4) if not dims else ("BF16", 2)
        size = width * math.prod(dims)
        header[name] = {"dtype": kind, "shape": list(dims), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(partial / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors.items():
            if not dims:
                file.write(struct.pack("<f", 0.03))
                continue
            if len(dims) == 1:
                file.write(ones * dims[0])
                continue
            source, width = (block8, 1) if name in matrices else (block, 2)
            begin = width * rng.randrange(BLOCK_VALUES)
            left = width * math.prod(dims)
            while left > 0:
                piece = source[begin:begin + left]
                file.write(piece)
                left, begin = left - len(piece), 0
    config = shape | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-6,
                      "rope_theta": 1e6, "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
                      "eos_token_id": 0, "attention_bias": False}
    if float8:
        config["quantization_config"] = {"quant_method": "fp8"}
    (partial / "config.json").write_text(json.dumps(config))
    words = ["<|endoftext|>", *byte_characters()]
    words += [f"t{i}" for i in range(shape["vocab_size"] - len(words))]
    tokenizer = {"version": "1.0", "normalizer": None, "post_processor": None,
                 "added_tokens": [{"id": 0, "content": words[0], "special": True, "single_word": False, "lstrip": False,
                                   "rstrip": False, "normalized": False}],
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": []}}
    (partial / "tokenizer.json").write_text(json.dumps(tokenizer))
    partial.rename(folder)


def rows_of(args):
    """(what, flags of bench offline, limit, what of the result); of what begins with 8-bit floats another model."""
    graphs = [] if args.device == "cpu" else ["--graph-mode"]
    many = ["--requests", "256", "--input-len", "100:1024", "--output-len", "100:1024", "--max-running-requests", "256"]
    one = ["--requests", "1", "--input-len", "128", "--output-len", "512", "--max-running-requests", "1"]
    if args.quick:
        many = ["--requests", "4", "--input-len", "10:20", "--output-len", "5:10", "--max-running-requests", "4"]
        # So many that they are not all read at once, the first one late.
        one = ["--requests", "1", "--input-len", "8", "--output-len", "512", "--max-running-requests", "1"]
    length, tokens = ("1024", "8") if args.quick else ("8192", "512")
    rows = []
    for mode in ["full"] if not graphs else ["full", "piecewise", "none"]:
        flags = [*graphs, mode] if graphs else []
        limit = ("at least 25,000 tok/s", "at most 0.8 ms a token") if mode == "full" else ("", "")
        rows += [(f"{many[1]} requests, {many[3]} tokens in, {many[5]} out, graphs: {mode}", many + flags, limit[0],
                  "throughput"),
                 (f"one request, graphs: {mode}", one + flags, limit[1], "token")]
    rows.append((f"one sequence of {length}", ["--requests", "1", "--input-len", length, "--output-len", "16",
                                               "--max-running-requests", "1"], "", "first"))
    rows.append((f"{tokens} sequences of one token", ["--requests", tokens, "--input-len", "1", "--output-len", "32",
                                                      "--max-running-requests", tokens], "", "throughput"))
    for weights in ["expanded"] if not graphs else ["expanded", "packed"]:
        flags = ["--gpu-weights", weights] if graphs else []
        rows += [(f"8-bit floats, {weights}, {many[1]} requests as above", many + flags, "", "throughput"),
                 (f"8-bit floats, {weights}, one request", one + flags, "", "token")]
    return rows


def result_of(figures, kind):
    if kind == "throughput":
        return f"{figures['output_tokens_per_second']:,.0f} tok/s out, {figures['total_tokens_per_second']:,.0f} in all"
    if kind == "token":
        # Of one request, and not the median of gaps: what is read late comes several tokens at a time.
        decoding = figures["seconds"] - figures["time_to_first_token_seconds"]["p50"]
        return f"{decoding / (figures['output_tokens'] - 1) * 1e3:.3f} ms a token"
    return f"first token after {figures['time_to_first_token_seconds']['p50'] * 1e3:.1f} ms"


def machine(device):
    if device == "cpu":
        return "the CPU, to try the commands"
    query = "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,memory.total"
    ran = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return ran.stdout.strip().splitlines()[0] if ran.returncode == 0 else "a GPU that nvidia-smi does not tell of"


def beside_transformers(model):
    """transformers with the same model, in this run; the python that runs this may not have it."""
    ran = subprocess.run([sys.executable, ROOT / "tests/bench/gpu_transformers.py", model], stdout=subprocess.PIPE, text=True,
                         check=False)
    if ran.returncode != 0:
        return ["", f"transformers beside it: {(ran.stdout.strip() or 'failed').splitlines()[-1]}."]
    figures = json.loads(ran.stdout.splitlines()[-1])
    return ["", f"{figures['versions']} with the same model in the same run: {figures['seconds_a_token'] * 1e3:.1f} ms a token "
            f"of one sequence, {figures['tokens_a_second']:,.0f} tok/s of {figures['requests']} sequences that all begin with "
            f"128 tokens and end after {figures['tokens']} more."]


def tell_kernels(program, tell):
    program = pathlib.Path(program or ROOT / "build/cuda/bench/gpu_kernels")
    if not program.exists():
        return tell("", f"No table of kernels: {program} is not built (FLOTILLA_TESTS).")
    tell("", "## Kernels", "", "Microseconds in a graph (tests/bench/gpu_kernels.cc).", "")
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as ran:
        for line in ran.stdout:
            tell(line.rstrip("\n"))
    if ran.returncode != 0:
        tell("", f"It ended with status {ran.returncode}: the rest is missing.")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small model and few requests")
    parser.add_argument("--bin-dir", help="default: build/cuda/bin, with --device cpu build/release/bin")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out, which takes a minute or two")
    parser.add_argument("--kernels", help="the program gpu_kernels; default: build/cuda/bench/gpu_kernels, if it is built")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/performance-gpu.md")
    args = parser.parse_args()
    bin_dir = args.bin_dir or ROOT / "build" / ("cuda" if args.device == "cuda" else "release") / "bin"
    model = CACHE / ("bench-small-qwen3" if args.quick else "bench-qwen3-0.6b")
    model8 = model.with_name(f"{model.name}-fp8")
    for folder in model, model8:
        if not folder.exists():
            print(f"making {folder}", file=sys.stderr)
            make_model(folder, SMALL if args.quick else QWEN3_06B, folder == model8)
    lines = []

    def tell(*more):
        # Each row at once: whatever ends the run, what it has measured is there.
        lines.extend(more)
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(*more, sep="\n", file=sys.stderr)

    tell("# Measured on a GPU", "",
         f"`tests/bench/gpu.py`, {datetime.date.today()}, commit {commit()}: {machine(args.device)}.",
         "Random weights in Qwen3-0.6B's shape, bfloat16." if not args.quick else "A small model: no figures.", "",
         "| | | wanted |", "|---|---|---|")
    failed = 0
    for what, flags, limit, kind in rows_of(args):
        command = [os.path.join(bin_dir, "flotilla"), "bench", "offline", "--json", "--model",
                   str(model8 if what.startswith("8-bit") else model), "--temperature", "0.6", "--device", args.device,
                   "--chunked-prefill-size", "4096", "--speculative-num-draft-tokens", "0", *flags]
        print(" ".join(command), file=sys.stderr)
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode != 0:
            failed += 1
            tell(f"| {what} | failed | {limit} |")
            continue
        tell(f"| {what} | {result_of(json.loads(ran.stdout), kind)} | {limit} |")
    if args.device == "cuda":
        tell_kernels(args.kernels, tell)
        if not args.no_transformers:
            tell(*beside_transformers(model))
    print(f"written: {args.out}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
