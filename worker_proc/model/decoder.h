// The skeleton of decoders: pre-normed blocks of grouped-query attention with RoPE and a gated
// feed-forward, or experts (feed_forward.h). A model says by a DecoderSpec how it differs from
// Llama (llama.cc, qwen.cc, gemma.cc); the forward itself is written once, in decoder.cc.
//
// Threads, ownership, errors: as Model. Source: "LLaMA: Open and Efficient Foundation Language
// Models", arXiv 2302.13971; names as in HF.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker_proc/model/model.h"

namespace flotilla {

struct DecoderLayerSpec {
  uint32_t window = 0;  // keys that a query sees, itself included; 0: all
  uint32_t rope = 0;    // index into DecoderSpec::ropes
};

struct DecoderSpec {
  std::vector<RopeSpec> ropes;
  std::vector<DecoderLayerSpec> layers;
  float embed_scale = 1;      // embeddings are multiplied by it
  float norm_eps = 0;         // of the norms over the whole width
  float head_factor = 1;      // logits are multiplied by it
  float attention_scale = 0;  // scores too
  float attn_softcap = 0;     // cap * tanh(score / cap); 0: none
  float final_softcap = 0;    // of logits
};

// Llama's: all layers alike. Where the config has sliding layers these have its window.
DecoderSpec MakeDecoderSpec(const ModelEnv& env);

// Tensors (biases, norms) are the config's.
std::unique_ptr<Model> MakeDecoder(const ModelEnv& env, DecoderSpec spec);

}  // namespace flotilla
