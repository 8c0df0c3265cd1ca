// Gemma 2 and Gemma 3, text: four norms a layer, a GELU gate, embeddings scaled by
// sqrt(hidden_size), and sliding layers between global ones. Gemma 2 caps scores and logits; Gemma
// 3 has norms of q and k instead, and its sliding layers a rope of their own.
//
// Source: "Gemma 2", arXiv 2408.00118, "Gemma 3 Technical Report", arXiv 2503.19786; names as in
// HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeGemma2ForCausalLM(const ModelEnv& env);
std::unique_ptr<Model> MakeGemma3ForCausalLM(const ModelEnv& env);

}  // namespace flotilla
