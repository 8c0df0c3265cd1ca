#include "worker_proc/model/llama.h"

#include "worker_proc/model/decoder.h"

namespace flotilla {

std::unique_ptr<Model> MakeLlamaForCausalLM(const ModelEnv& env) {
  return MakeDecoder(env, MakeDecoderSpec(env));
}

}  // namespace flotilla
