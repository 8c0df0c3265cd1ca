"""Makes the golden data: final hidden states of SmolLM2 as transformers computes them.

  python make_golden.py MODEL.gguf           writes golden/smollm2_hidden.npz and .json
  python make_golden.py MODEL.gguf --check   computes them anew and compares with the committed ones

The GGUF's weights are dequantised by the gguf package and given to transformers' LlamaForCausalLM in
fp32 on one CPU thread (so that the sums have one order). Token ids come from the tokenizers library
built from the GGUF (tests/common/golden_tokenizer.py). Kept are the hidden states after the final
norm: the logits are their product with the dequantised head, which check_logits.py recomputes.

The npz has: names (prompts in order), lengths (tokens of each), ids (int32, all prompts joined) and
hidden (fp32 [sum of lengths, hidden_size]). Needs requirements.txt; see there.
"""

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))
import golden_tokenizer  # noqa: E402
from prompts import PROMPTS  # noqa: E402

GOLDEN = HERE / "golden" / "smollm2_hidden.npz"
# BLAS libraries sum in other orders; a difference as a share of a position's largest value. Debian's
# reference BLAS and OpenBLAS, each within 2e-5 of fp64, differ by 3e-5.
MAX_RELATIVE_ERROR = 5e-5

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm",
               "output": "lm_head"}


def hf_name(name):
    if not name.startswith("blk."):
        return MODEL_NAMES[name.removesuffix(".weight")] + ".weight"
    _, layer, rest = name.removesuffix(".weight").split(".", 2)
    return f"model.layers.{layer}.{LAYER_NAMES[rest]}.weight"


def to_rotate_half(weight, num_heads):
    """Rows of q or k from GGUF's order (pairs side by side) to HF's (halves of a head)."""
    rows, cols = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, cols)
    return pairs.swapaxes(1, 2).reshape(rows, cols)


def load_model(path):
    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields["llama." + key].contents()
    tensors = {t.name: t for t in reader.tensors}
    config = transformers.LlamaConfig(
        vocab_size=get("vocab_size"), hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), rope_theta=get("rope.freq_base"),
        tie_word_embeddings="output.weight" not in tensors, attn_implementation="eager")
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for name, tensor in tensors.items():
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = name.split(".")[-2]
        if kind in heads:
            weight = to_rotate_half(weight, heads[kind])
        state[hf_name(name)] = torch.from_numpy(np.ascontiguousarray(weight))
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def compute(path):
    torch.set_num_threads(1)
    model = load_model(path)
    reference = golden_tokenizer.Reference(path)
    ids, hidden = [], []
    with torch.no_grad():
        for name, text in PROMPTS.items():
            tokens = reference.encode(text)
            output = model.model(input_ids=torch.tensor([tokens]), use_cache=False)
            ids.append(np.array(tokens, dtype=np.int32))
            hidden.append(output.last_hidden_state[0].numpy())
            print(f"{name}: {len(tokens)} tokens", flush=True)
    lengths = np.array([len(i) for i in ids], dtype=np.int32)
    assert len(set(lengths)) == len(lengths), f"lengths identify prompts, must differ: {lengths}"
    return {"names": np.array(list(PROMPTS)), "lengths": lengths, "ids": np.concatenate(ids),
            "hidden": np.concatenate(hidden).astype(np.float32)}


def write(golden, model_path):
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez(GOLDEN, **golden)  # fixed time stamps: equal data, equal bytes
    about = {
        "model_sha256": hashlib.sha256(Path(model_path).read_bytes()).hexdigest(),
        "npz_sha256": hashlib.sha256(GOLDEN.read_bytes()).hexdigest(),
        "positions": int(golden["lengths"].sum()),
        "tokens": dict(zip(golden["names"].tolist(), golden["lengths"].tolist())),
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__, "numpy": np.__version__,
                     "tokenizers": tokenizers.__version__},
    }
    GOLDEN.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"wrote {GOLDEN}: {about['positions']} positions, {GOLDEN.stat().st_size} bytes")


def check(golden):
    """Compares with the committed data. Returns an exit status."""
    with np.load(GOLDEN) as committed:
        for key in ("names", "lengths", "ids"):
            if not np.array_equal(committed[key], golden[key]):
                print(f"FAILED: {key} differ from {GOLDEN}")
                return 1
        scale = np.abs(committed["hidden"]).max(axis=1, keepdims=True)
        error = float((np.abs(committed["hidden"] - golden["hidden"]) / scale).max())
    verdict = "ok" if error <= MAX_RELATIVE_ERROR else "FAILED"
    print(f"{verdict}: largest relative difference {error:.3g}, limit {MAX_RELATIVE_ERROR:g}")
    return 0 if verdict == "ok" else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--check", action="store_true",
                        help="compare with the committed data instead of writing it")
    options = parser.parse_args()
    golden = compute(options.model)
    if options.check:
        return check(golden)
    write(golden, options.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
