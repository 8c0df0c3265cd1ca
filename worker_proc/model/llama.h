// Llama (also SmolLM2) and Mistral: the plain decoder. Mistral's first version has a sliding window
// on all layers.
//
// Source: arXiv 2302.13971, "Mistral 7B", arXiv 2310.06825; names as in HF.
#pragma once

#include <memory>

#include "worker_proc/model/model.h"

namespace flotilla {

std::unique_ptr<Model> MakeLlamaForCausalLM(const ModelEnv& env);
std::unique_ptr<Model> MakeMistralForCausalLM(const ModelEnv& env);

}  // namespace flotilla
