// The architectures that we can load, by both of their names, and the tensors that each must have.
// Private to common/checkpoint.
//
// A new model is a row here and a file in worker_proc/model/ (docs/adding-a-model.md).
// Threads: pure functions. Errors: InvalidArgument naming the architecture or the tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/gguf.h"
#include "common/checkpoint/json_object.h"

namespace flotilla::internal {

struct Architecture {
  std::string_view gguf;  // general.architecture, before the first point of its keys; "": none
  std::string_view hf;    // config.json's architectures[0], the registry's key
  HiddenAct hidden_act = HiddenAct::kSilu;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool sandwich_norms = false;
  bool fused_projections = false;
  bool experts = false;
  bool partial_rotary = false;    // a config.json may say that heads rotate in part
  bool gguf_permutes_qk = false;  // its converter orders rows for rotation of adjacent pairs
  double rope_theta = 10000.0;    // where the file says nothing
  bool tied = false;              // tie_word_embeddings where config.json says nothing
  // What else is the architecture's own, after all common fields; null: nothing.
  Status (*finish_gguf)(const GgufFile& gguf, ModelConfig* config) = nullptr;
  Status (*finish_hf)(const JsonObject& json, ModelConfig* config) = nullptr;
};

// By general.architecture, of which one name may stand for models with and without experts; by the
// first of config.json's architectures.
StatusOr<const Architecture*> FindGgufArchitecture(std::string_view name, bool experts);
StatusOr<const Architecture*> FindHfArchitecture(std::string_view name);

// A tensor by its HF name, or the matrices of which a fused one, or one of all experts, has the
// rows.
struct NamedTensor {
  std::string name;
  TensorView view;  // without it
};
std::vector<NamedTensor> SplitFused(const ModelConfig& config, std::string name,
                                    const TensorView& view);

// A safetensors name as the models know it: Mixtral's files have names of their own for experts.
std::string ModelTensorName(const ModelConfig& config, std::string_view name);

// Checks that the tensors (HF names) are exactly those of the config, with its shapes.
Status CheckTensors(const ModelConfig& config, const std::vector<TensorView>& tensors);

// Rows of the table that need more than flags: expert_config.cc, gemma_config.cc,
// granite_config.cc, hf_config.cc, phi3_config.cc, smollm3_config.cc.
Status FinishGemma2Gguf(const GgufFile& gguf, ModelConfig* config);
Status FinishGemma2Hf(const JsonObject& json, ModelConfig* config);
Status FinishGemma3Gguf(const GgufFile& gguf, ModelConfig* config);
Status FinishGemma3Hf(const JsonObject& json, ModelConfig* config);
Status FinishGraniteGguf(const GgufFile& gguf, ModelConfig* config);
Status FinishGraniteHf(const JsonObject& json, ModelConfig* config);
Status FinishMistralHf(const JsonObject& json, ModelConfig* config);
Status FinishExpertsGguf(const GgufFile& gguf, ModelConfig* config);
Status FinishMixtralHf(const JsonObject& json, ModelConfig* config);
Status FinishPhi3Gguf(const GgufFile& gguf, ModelConfig* config);
Status FinishPhi3Hf(const JsonObject& json, ModelConfig* config);
Status FinishQwenHf(const JsonObject& json, ModelConfig* config);
Status FinishQwen3MoeHf(const JsonObject& json, ModelConfig* config);
Status FinishSmolLm3Gguf(const GgufFile& gguf, ModelConfig* config);
Status FinishSmolLm3Hf(const JsonObject& json, ModelConfig* config);

}  // namespace flotilla::internal
