"""What transformers computes with the weights of a Gemma 3 GGUF.

  python make_gguf_reference.py MODEL.gguf OUT.npz

The weights are dequantised by the gguf package, whatever their types, and given to transformers'
Gemma3ForCausalLM in fp32. OUT.npz is as make_random_checkpoints.py writes it; the prompts are some of
prompts.py, cut greedily into the file's own tokens, so that no tokenizer is relied on. Needs
models_requirements.txt.
"""

import sys

import gguf
import numpy as np
import torch
import transformers

from prompts import PROMPTS

NAMES = ("explanation", "french_recipe", "numbers", "japanese_note", "python")
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def hf_name(name):
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return MODEL_NAMES[stem] + ".weight"
    _, layer, rest = stem.split(".", 2)
    return f"model.layers.{layer}.{LAYER_NAMES[rest]}.weight"


def load_model(reader):
    get = lambda key: reader.fields["gemma3." + key].contents()
    layers = get("block_count")
    config = transformers.Gemma3TextConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"),
        num_hidden_layers=layers, num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"), head_dim=get("attention.key_length"),
        max_position_embeddings=get("context_length"), rope_theta=get("rope.freq_base"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        query_pre_attn_scalar=get("attention.key_length"),
        sliding_window=get("attention.sliding_window"), attn_implementation="eager")
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        # The converter has added 1 to the norms.
        state[hf_name(tensor.name)] = values - 1 if "norm" in tensor.name else values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.Gemma3ForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def cut(text, ids):
    """The longest token that fits, again and again."""
    text, longest, out = text.replace(" ", "▁"), max(map(len, ids)), []
    while text:
        size = next(n for n in range(min(longest, len(text)), 0, -1) if text[:n] in ids)
        out.append(ids[text[:size]])
        text = text[size:]
    return out


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    torch.set_num_threads(2)
    model = load_model(reader)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    ids = {token: i for i, token in enumerate(tokens)}
    bos = reader.fields["tokenizer.ggml.bos_token_id"].contents()
    prompts = [[bos] + cut(PROMPTS[name], ids) for name in NAMES]
    assert len({len(p) for p in prompts}) == len(prompts), "lengths name the prompts: they must differ"
    logits = []
    for prompt in prompts:
        with torch.no_grad():
            logits.append(model(torch.tensor([prompt]), use_cache=False).logits[0].numpy())
    np.savez(sys.argv[2], lengths=np.array([len(p) for p in prompts]),
             ids=np.concatenate([np.array(p, dtype=np.int32) for p in prompts]),
             logits=np.concatenate(logits))


if __name__ == "__main__":
    main()
