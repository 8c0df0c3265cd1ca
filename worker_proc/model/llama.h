// LlamaForCausalLM: Llama and SmolLM2. Pre-norm blocks of grouped-query attention with RoPE and a
// SiLU-gated feed-forward; the head may be the embedding.
//
// Source: "LLaMA: Open and Efficient Foundation Language Models", arXiv 2302.13971; names as in HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeLlamaForCausalLM(const ModelEnv& env);

}  // namespace flotilla
