// What is the own of models with experts: how their weights are made, and what of it is not
// supported.
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {

// The weights of a token's experts sum to 1 where a file says nothing.
Status FinishExpertsGguf(const GgufFile& gguf, ModelConfig* config) {
  constexpr uint64_t kSoftmax = 1;
  ASSIGN_OR_RETURN(const std::string_view architecture, gguf.GetString("general.architecture"));
  config->norm_topk_prob = true;
  const auto has = [&](const std::string& key) { return gguf.metadata().contains(key); };
  const std::string gating = StrCat(architecture, ".expert_gating_func");
  if (has(gating)) {
    ASSIGN_OR_RETURN(const uint64_t function, gguf.GetUint(gating));
    if (function > kSoftmax) {  // 0: not said
      return absl::InvalidArgumentError(
          StrCat("metadata ", gating, " is ", function, "; only 1, softmax, is supported"));
    }
  }
  const std::string norm = StrCat(architecture, ".expert_weights_norm");
  if (has(norm)) {
    ASSIGN_OR_RETURN(config->norm_topk_prob, gguf.GetBool(norm));
  }
  const std::string scale = StrCat(architecture, ".expert_weights_scale");
  if (has(scale)) {
    ASSIGN_OR_RETURN(const double factor, gguf.GetFloat(scale));
    if (factor != 0 && factor != 1) {  // 0: not said
      return absl::InvalidArgumentError(
          StrCat("metadata ", scale, " is ", factor, "; only 1 is supported"));
    }
  }
  for (const char* name : {"expert_shared_count", "expert_group_count", "leading_dense_block_count",
                           "interleave_moe_layer_step"}) {
    const std::string key = StrCat(architecture, ".", name);
    if (!has(key)) continue;
    ASSIGN_OR_RETURN(const uint64_t count, gguf.GetUint(key));
    if (count == 0) continue;
    return absl::InvalidArgumentError(
        StrCat("metadata ", key, " is ", count, ", which is not supported"));
  }
  return OkStatus();
}

Status FinishMixtralHf(const JsonObject& json, ModelConfig* config) {
  config->norm_topk_prob = true;
  if (!json.Has("rope_theta") && !json.Has("rope_parameters")) config->rope_theta = 1e6f;
  return ReadWindowOfAllLayers(json, config);
}

Status FinishQwen3MoeHf(const JsonObject& json, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->norm_topk_prob, json.BoolOr("norm_topk_prob", false));
  if (json.Has("decoder_sparse_step")) {
    ASSIGN_OR_RETURN(const uint64_t step, json.Uint("decoder_sparse_step"));
    if (step != 1) {
      return json.Error("decoder_sparse_step",
                        StrCat("is ", step, "; only 1, experts in every layer, is supported"));
    }
  }
  if (json.Has("mlp_only_layers")) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> dense, json.Ints("mlp_only_layers"));
    if (!dense.empty()) {
      return json.Error("mlp_only_layers", "names layers without experts, which is not supported");
    }
  }
  return FinishQwenHf(json, config);
}

}  // namespace flotilla::internal
