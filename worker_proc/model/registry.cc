#include "worker_proc/model/registry.h"

#include <string_view>

#include "worker_proc/model/gemma.h"
#include "worker_proc/model/llama.h"
#include "worker_proc/model/qwen.h"

namespace flotilla {
namespace {

struct Entry {
  std::string_view architecture;  // ModelConfig::architecture
  std::unique_ptr<Model> (*create)(const ModelEnv& env);
};

constexpr Entry kModels[] = {
    {"LlamaForCausalLM", MakeLlamaForCausalLM},  // Llama, SmolLM2
    {"MistralForCausalLM", MakeLlamaForCausalLM},
    {"MixtralForCausalLM", MakeLlamaForCausalLM},
    {"Qwen2ForCausalLM", MakeQwen2ForCausalLM},  // Qwen2.5 too
    {"Qwen3ForCausalLM", MakeQwen3ForCausalLM},
    {"Qwen3MoeForCausalLM", MakeQwen3MoeForCausalLM},
    {"SmolLM3ForCausalLM", MakeLlamaForCausalLM},
    {"Phi3ForCausalLM", MakeLlamaForCausalLM},  // Phi-4 too
    {"GraniteForCausalLM", MakeLlamaForCausalLM},
    {"Gemma2ForCausalLM", MakeGemma2ForCausalLM},
    {"Gemma3ForCausalLM", MakeGemma3ForCausalLM},
};

}  // namespace

StatusOr<std::unique_ptr<Model>> CreateModel(const ModelEnv& env) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (entry.architecture == env.config->architecture) return entry.create(env);
    StrAppend(&known, known.empty() ? "" : ", ", entry.architecture);
  }
  return absl::NotFoundError(
      StrCat("architecture ", env.config->architecture, " is not supported; known: ", known));
}

}  // namespace flotilla
