#!/usr/bin/env python3
"""Writes a GGUF with experts, in the shape of Qwen3-30B-A3B but for its layers: what to measure them with.

  tests/bench/random_experts.py experts.gguf                       8 layers, Q4_0: 2.9 GB
  tests/bench/batched.py --model experts.gguf --types ""           then: steps beside llama.cpp on the same file

Its weights are random, so what it says is noise, and tokens find their experts by chance. The tokenizer is the default
model's. Blocks are made of random bytes with one scale, so no weight is computed.
"""

import argparse

import gguf
import numpy as np
from checkout import DEFAULT_MODEL

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, TOP_K, INNER, CONTEXT = 2048, 32, 4, 128, 128, 8, 768, 4096
Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0


def blocks(random, shape, kind):
    """Random blocks of values with a variance of about 1 / columns."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    of_one = {Q4_0: 4.6, Q8_0: 74.0}[kind]  # the deviation of a uniform element
    scale = np.array([1 / (of_one * shape[-1]**0.5)], np.float16).view(np.uint8)
    count = int(np.prod(shape)) // values
    data = random.integers(0, 256, (count, size), np.uint8)
    data[:, :2] = scale
    return data.reshape(*shape[:-1], shape[-1] // values * size)


def copy_tokenizer(writer, path):
    for field in gguf.GGUFReader(path).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    vocab = len(gguf.GGUFReader(DEFAULT_MODEL).fields["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(args.path, "qwen3moe", use_temp_file=True)
    writer.add_name("random experts")
    writer.add_block_count(args.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(3 * HIDDEN)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    copy_tokenizer(writer, DEFAULT_MODEL)

    def matrix(name, *shape, kind=Q4_0):
        writer.add_tensor(name, blocks(random, shape, kind), raw_dtype=kind)

    def floats(name, *shape, scale=0.0):
        writer.add_tensor(name, (1 - (scale > 0) + scale * random.standard_normal(shape)).astype(np.float32))

    matrix("token_embd.weight", vocab, HIDDEN, kind=Q8_0)
    matrix("output.weight", vocab, HIDDEN, kind=Q8_0)
    floats("output_norm.weight", HIDDEN)
    for layer in range(args.layers):
        prefix = f"blk.{layer}."
        for norm, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            floats(f"{prefix}{norm}.weight", size)
        for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{prefix}attn_{part}.weight", rows * HEAD, HIDDEN)
        matrix(prefix + "attn_output.weight", HIDDEN, HEADS * HEAD)
        floats(prefix + "ffn_gate_inp.weight", EXPERTS, HIDDEN, scale=HIDDEN**-0.5)
        for part, rows, cols in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            matrix(f"{prefix}ffn_{part}_exps.weight", EXPERTS, rows, cols)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
