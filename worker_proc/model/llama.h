// Llama (also SmolLM2) and what differs from it by its config alone: Mistral, whose first version
// has a sliding window on all layers; SmolLM3, each fourth of whose layers does not rotate;
// Granite, whose embeddings, scores, logits and what layers add have factors; Phi-3 and Phi-4,
// whose files have fused matrices and whose heads may rotate in part, by LongRoPE.
//
// Source: arXiv 2302.13971, "Mistral 7B", arXiv 2310.06825, "Granite 3.0 Language Models"; names as
// in HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeLlamaForCausalLM(const ModelEnv& env);

}  // namespace flotilla
