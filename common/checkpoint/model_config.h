// A model's hyperparameters under HF's names.
#pragma once

#include <cstdint>
#include <string>

namespace flotilla {

struct ModelConfig {
  std::string architecture;  // registry key, e.g. "LlamaForCausalLM"
  std::string name;          // general.name, for people
  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t num_hidden_layers = 0;
  uint32_t num_attention_heads = 0;
  uint32_t num_key_value_heads = 0;
  uint32_t head_dim = 0;
  uint32_t max_position_embeddings = 0;  // context length, tokens
  float rms_norm_eps = 0;
  float rope_theta = 0;
  uint32_t rope_dim = 0;             // leading dims of a head that rotate
  bool rope_interleaved = false;     // pairs (2i, 2i+1) as in GGUF's llama, else (i, i + d/2)
  bool tie_word_embeddings = false;  // lm_head is the embedding
};

}  // namespace flotilla
