#include "worker_proc/model/llama.h"

#include "worker_proc/model/decoder.h"

namespace flotilla {

std::unique_ptr<Model> MakeLlamaForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakeMistralForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakeSmolLM3ForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakePhi3ForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

std::unique_ptr<Model> MakeGraniteForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

}  // namespace flotilla
