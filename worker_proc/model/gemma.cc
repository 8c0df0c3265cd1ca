#include "worker_proc/model/gemma.h"

#include <cmath>

#include "common/base/check.h"
#include "worker_proc/model/decoder.h"

namespace flotilla {

std::unique_ptr<Model> MakeGemma2ForCausalLM(const ModelEnv& env) {
  const ModelConfig& config = *env.config;
  DecoderSpec spec = MakeDecoderSpec(env);
  // HF computes the root in double and keeps it in the type of the weights: here fp32.
  spec.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  return MakeDecoder(env, std::move(spec));
}

// What else it has is the config's.
std::unique_ptr<Model> MakeGemma3ForCausalLM(const ModelEnv& env) {
  CHECK(env.config->qk_norm);
  return MakeGemma2ForCausalLM(env);
}

}  // namespace flotilla
