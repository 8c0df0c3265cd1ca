// Gemma 3, text: four norms a layer, norms of q and k, a GELU gate, embeddings scaled by
// sqrt(hidden_size), and sliding layers with a rope of their own between global ones.
//
// Source: "Gemma 3 Technical Report", arXiv 2503.19786; names as in HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeGemma3ForCausalLM(const ModelEnv& env);

}  // namespace flotilla
