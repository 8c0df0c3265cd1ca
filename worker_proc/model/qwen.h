// Qwen2 (also Qwen2.5): a bias on q, k and v. Qwen3: none, but a norm of each head of q and k; with
// experts, too.
//
// Source: "Qwen2 Technical Report", arXiv 2407.10671, and Qwen3's, arXiv 2505.09388; names as in
// HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeQwen2ForCausalLM(const ModelEnv& env);
std::unique_ptr<Model> MakeQwen3ForCausalLM(const ModelEnv& env);
std::unique_ptr<Model> MakeQwen3MoeForCausalLM(const ModelEnv& env);

}  // namespace flotilla
