// A model's hyperparameters under HF's names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/hidden_act.h"

namespace flotilla {

struct ModelConfig {
  std::string architecture;  // registry key, e.g. "LlamaForCausalLM"
  std::string name;          // general.name, for people
  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;  // of a feed-forward: of one expert where there are any
  uint32_t num_hidden_layers = 0;
  uint32_t num_attention_heads = 0;
  uint32_t num_key_value_heads = 0;
  uint32_t head_dim = 0;
  uint32_t max_position_embeddings = 0;  // context length, tokens
  float rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // lm_head is the embedding
  HiddenAct hidden_act = HiddenAct::kSilu;

  // Mixtures of experts: each layer has so many feed-forwards, of which a router chooses some for
  // each token; 0: one for all.
  uint32_t num_experts = 0;
  uint32_t num_experts_per_tok = 0;
  bool norm_topk_prob = false;  // the weights of a token's experts sum to 1

  // Which tensors a layer has besides those of every model.
  bool qkv_bias = false;
  bool qk_norm = false;            // q_norm and k_norm, of each head before it rotates
  bool sandwich_norms = false;     // norms before and behind attention and feed-forward
  bool fused_projections = false;  // a file has q, k and v as one matrix, and gate and up
  float norm_weight_offset = 0;    // what a norm adds to its weight: 1 if the file has w - 1

  float rope_theta = 0;
  uint32_t rope_dim = 0;          // leading dims of a head that rotate
  bool rope_interleaved = false;  // pairs (2i, 2i+1) as in GGUF's llama, else (i, i + d/2)
  // [rope_dim / 2]: what the frequencies are divided by (rope_scaling); empty: nothing.
  std::vector<double> rope_divisors;
  // LongRoPE's: instead of rope_divisors where the context served is longer than this; 0: never.
  // And what rotated values are multiplied with.
  uint32_t rope_original_context = 0;
  std::vector<double> rope_long_divisors;
  float rope_magnitude = 1;
  float rope_local_theta = 0;  // of the sliding layers, without divisors; 0: they are as the others
  std::vector<bool> layers_without_rope;  // [num_hidden_layers]; empty: none

  // What embeddings are multiplied with, what each layer adds, and logits divided by (Granite's).
  float embedding_multiplier = 1;
  float residual_multiplier = 1;
  float logits_scaling = 1;

  float query_pre_attn_scalar = 0;    // scores are multiplied by its -1/2th power
  float attn_logit_softcapping = 0;   // scores become cap * tanh(score / cap); 0: they stay
  float final_logit_softcapping = 0;  // the same of logits
  // A query of a sliding layer sees itself and sliding_window - 1 keys before.
  uint32_t sliding_window = 0;
  std::vector<bool> sliding_layers;  // [num_hidden_layers]; empty: none

  bool is_sliding(uint32_t layer) const { return !sliding_layers.empty() && sliding_layers[layer]; }
  bool has_rope(uint32_t layer) const {
    return layers_without_rope.empty() || !layers_without_rope[layer];
  }
};

}  // namespace flotilla
