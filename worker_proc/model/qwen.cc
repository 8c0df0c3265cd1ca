#include "worker_proc/model/qwen.h"

#include "common/base/check.h"
#include "worker_proc/model/decoder.h"

namespace flotilla {

std::unique_ptr<Model> MakeQwen2ForCausalLM(const ModelEnv& env) {
  CHECK(env.config->qkv_bias);
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakeQwen3MoeForCausalLM(const ModelEnv& env) {
  CHECK(env.config->qk_norm && env.config->num_experts > 0);
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakeQwen3ForCausalLM(const ModelEnv& env) {
  CHECK(env.config->qk_norm);
  return MakeDecoder(env, MakeDecoderSpec(env));
}

}  // namespace flotilla
