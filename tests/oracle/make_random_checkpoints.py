"""Makes a small random checkpoint of each architecture, and what transformers computes with it.

  python make_random_checkpoints.py FOLDER

FOLDER/<name>/ becomes a model folder as transformers saves it (config.json, safetensors, some in
shards, in F32, F16 or BF16, a byte-level tokenizer.json), or with matrices of 8-bit floats, as "fp8"
models have them; FOLDER/<name>.npz has `lengths`, `ids` (all
prompts joined) and `logits` (fp32, [sum of lengths, vocabulary]) of the weights as saved, computed in
fp32. Prompts are random ids of different lengths, most of them longer than the sliding windows.
Needs models_requirements.txt; see there.
"""

import json
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

LENGTHS = (1, 5, 17, 40, 75, 160, 300)
VOCAB = 320  # more than the tokenizer has, as in many models
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
LONG_ROPE = {"type": "longrope", "short_factor": [1.1, 1.0, 1.2, 1.0, 1.3, 1.0],
             "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0]}
SHAPE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             bos_token_id=0, eos_token_id=1, pad_token_id=1)


def checkpoints():
    """name → (model class, config, dtype of the file, largest shard)."""
    t = transformers
    gemma3 = SHAPE | dict(num_hidden_layers=7, num_key_value_heads=1, head_dim=32,
                          query_pre_attn_scalar=24, sliding_window=24, sliding_window_pattern=3,
                          rope_scaling={"rope_type": "linear", "factor": 8.0})
    gemma2 = SHAPE | dict(num_hidden_layers=4, head_dim=32, query_pre_attn_scalar=24, sliding_window=24)
    smollm3 = SHAPE | dict(num_hidden_layers=5)
    return {
        "llama3": (t.LlamaForCausalLM, t.LlamaConfig(**SHAPE, rope_scaling=LLAMA3_ROPE,
                                                     tie_word_embeddings=False),
                   torch.float16, "5GB"),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**SHAPE, sliding_window=24),
                    torch.float32, "60KB"),
        "mistral_no_window": (t.MistralForCausalLM, t.MistralConfig(
            **SHAPE, sliding_window=None, head_dim=32), torch.bfloat16, "5GB"),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**SHAPE, tie_word_embeddings=True),
                  torch.bfloat16, "40KB"),
        "qwen2_window": (t.Qwen2ForCausalLM, t.Qwen2Config(
            **SHAPE, use_sliding_window=True, sliding_window=24, max_window_layers=1),
            torch.float32, "5GB"),
        "qwen3_fp8": (t.Qwen3ForCausalLM, t.Qwen3Config(**SHAPE, head_dim=32), torch.bfloat16, "5GB"),
        "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**SHAPE, head_dim=32), torch.float32, "5GB"),
        "qwen3_moe": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(
            **SHAPE, head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64,
            norm_topk_prob=True), torch.bfloat16, "100KB"),
        "qwen3_moe_plain": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(
            **SHAPE, head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
            norm_topk_prob=False), torch.float32, "5GB"),
        "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(
            **SHAPE, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False), torch.float32, "5GB"),
        "mixtral_window": (t.MixtralForCausalLM, t.MixtralConfig(
            **SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=24), torch.bfloat16, "60KB"),
        "smollm3": (t.SmolLM3ForCausalLM, t.SmolLM3Config(**smollm3), torch.bfloat16, "5GB"),
        "smollm3_window": (t.SmolLM3ForCausalLM, t.SmolLM3Config(
            **smollm3, no_rope_layers=[1, 0, 0, 1, 0], use_sliding_window=True, sliding_window=24),
            torch.float32, "60KB"),
        "phi3": (t.Phi3ForCausalLM, t.Phi3Config(**SHAPE, sliding_window=24), torch.float32, "60KB"),
        # transformers takes the long factors from the fifth position of a prompt on, we in a context that is longer.
        "phi3_long": (t.Phi3ForCausalLM, t.Phi3Config(
            **SHAPE, partial_rotary_factor=0.75, original_max_position_embeddings=4,
            rope_scaling=LONG_ROPE), torch.bfloat16, "5GB"),
        "phi3_short": (t.Phi3ForCausalLM, t.Phi3Config(
            **SHAPE | dict(max_position_embeddings=2048), partial_rotary_factor=0.75,
            original_max_position_embeddings=512, rope_scaling=LONG_ROPE), torch.float32, "5GB"),
        "granite": (t.GraniteForCausalLM, t.GraniteConfig(
            **SHAPE, embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.3,
            logits_scaling=2.0, tie_word_embeddings=True), torch.float32, "5GB"),
        "gemma2": (t.Gemma2ForCausalLM, t.Gemma2Config(
            **gemma2, attn_logit_softcapping=3.0, final_logit_softcapping=4.0), torch.float32, "5GB"),
        "gemma2_uncapped": (t.Gemma2ForCausalLM, t.Gemma2Config(
            **gemma2, attn_logit_softcapping=None, final_logit_softcapping=None), torch.bfloat16, "100KB"),
        "gemma3": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(**gemma3), torch.float32, "5GB"),
        "gemma3_soft_capped": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(
            **gemma3, attn_logit_softcapping=3.0, final_logit_softcapping=4.0),
            torch.bfloat16, "100KB"),
    }


def randomise(model, generator):
    """Weights that keep activations and logits of order one; norms and biases that matter."""
    offset = 0.0 if "Gemma" in type(model).__name__ else 1.0  # Gemma's norms add 1 themselves
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(offset + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1]**0.5)


FP8_BLOCK = (32, 48)  # of a factor; some at the edges are smaller


def round_to_fp8(model):
    """Makes each matrix of the layers what 8-bit floats times their factors are, rounded to bfloat16 as they are when
    they are loaded. Returns the floats and the factors by name."""
    matrices = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.data
        factors = torch.stack([torch.stack([tile.abs().max() for tile in row.split(FP8_BLOCK[1], dim=1)])
                               for row in weight.split(FP8_BLOCK[0])]) / torch.finfo(torch.float8_e4m3fn).max
        of_each = factors.repeat_interleave(FP8_BLOCK[0], 0)[:weight.shape[0]]
        of_each = of_each.repeat_interleave(FP8_BLOCK[1], 1)[:, :weight.shape[1]]
        floats = (weight / of_each).to(torch.float8_e4m3fn)
        module.weight.data = (floats.float() * of_each).bfloat16().float()
        matrices[f"{name}.weight"] = floats, factors
    return matrices


def save_fp8(folder, matrices):
    """The folder's matrices again as 8-bit floats, and what config.json says of that."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, (floats, factors) in matrices.items():
        tensors[name] = floats
        tensors[f"{name}_scale_inv"] = factors.contiguous()
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": list(FP8_BLOCK)}
    (folder / "config.json").write_text(json.dumps(config))


def make_tokenizer():
    vocab = {"<|begin|>": 0, "<|end|>": 1}
    for token in sorted(pre_tokenizers.ByteLevel.alphabet()) + ["th", "the", "in", "an"]:
        vocab[token] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}")


def make(name, folder, generator):
    model_class, config, dtype, shard = checkpoints()[name]
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    randomise(model, generator)
    matrices = round_to_fp8(model) if name.endswith("_fp8") else {}
    model.to(dtype).save_pretrained(folder / name, max_shard_size=shard)
    make_tokenizer().save_pretrained(folder / name)
    # What was saved, computed in fp32; read again, as .to() has rounded rope's frequencies too.
    model = model_class.from_pretrained(folder / name, dtype=torch.float32,
                                        attn_implementation="eager").eval()
    # transformers' Gemma 3 has the attention's cap, but hands it on only if the caller does.
    cap = getattr(config, "attn_logit_softcapping", None)
    extra = {} if cap is None or not name.startswith("gemma3") else {"softcap": cap}
    ids, logits = [], []
    for length in LENGTHS:
        prompt = torch.randint(2, VOCAB, (1, length), generator=generator)
        with torch.no_grad():
            logits.append(model(prompt, use_cache=False, **extra).logits[0].numpy())
        ids.append(prompt[0].numpy().astype(np.int32))
    if matrices:
        save_fp8(folder / name, matrices)
    np.savez(folder / f"{name}.npz", lengths=np.array(LENGTHS), ids=np.concatenate(ids),
             logits=np.concatenate(logits))


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    generator = torch.Generator().manual_seed(1)
    for name in checkpoints():
        make(name, folder, generator)
    versions = {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, np)}
    print(json.dumps(versions))


if __name__ == "__main__":
    main()
