#include "worker_proc/model/gemma3.h"

#include <cmath>

#include "worker_proc/model/decoder.h"

namespace flotilla {

std::unique_ptr<Model> MakeGemma3ForCausalLM(const ModelEnv& env) {
  const ModelConfig& config = *env.config;
  DecoderSpec spec = MakeDecoderSpec(env);
  // HF computes the root in double and keeps it in the type of the weights: here fp32.
  spec.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  return MakeDecoder(env, std::move(spec));
}

}  // namespace flotilla
