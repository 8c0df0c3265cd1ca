// What is Gemma 3's own in a GGUF's metadata and in a config.json.
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {
namespace {

constexpr float kLocalTheta = 10000.0f;
constexpr uint32_t kPattern = 6;       // each sixth layer is global
constexpr uint32_t kLayersOf27B = 62;  // its heads are narrower than its scores' scale says
constexpr uint32_t kMaxWindow = 1 << 24;

Status CheckSoftcap(float cap, std::string_view key) {
  if (cap >= 0 && cap <= 1e6f) return OkStatus();  // 0: none
  return absl::InvalidArgumentError(StrCat(key, " is ", cap, "; it must be in 0..1e6"));
}

void SetEachGlobal(uint32_t window, uint64_t pattern, ModelConfig* config) {
  SetSlidingLayers(config, window, [&](uint32_t i) { return (i + 1) % pattern != 0; });
}

// A flag for each layer, or each pattern-th layer is global.
Status ReadGgufPattern(const GgufFile& gguf, uint32_t window, ModelConfig* config) {
  constexpr std::string_view kKey = "gemma3.attention.sliding_window_pattern";
  if (const std::vector<int64_t>* flags = gguf.FindInts(kKey); flags != nullptr) {
    if (flags->size() != config->num_hidden_layers) {
      return absl::InvalidArgumentError(StrCat("metadata ", kKey, " has ", flags->size(),
                                               " entries but the model ", config->num_hidden_layers,
                                               " layers"));
    }
    SetSlidingLayers(config, window, [&](uint32_t i) { return (*flags)[i] != 0; });
    return OkStatus();
  }
  uint64_t pattern = kPattern;
  if (gguf.metadata().contains(kKey)) {
    ASSIGN_OR_RETURN(pattern, gguf.GetUint(kKey));
    if (pattern == 0) {
      return absl::InvalidArgumentError(StrCat("metadata ", kKey, " is 0; it must be at least 1"));
    }
  }
  SetEachGlobal(window, pattern, config);
  return OkStatus();
}

// A layer type for each layer, or each pattern-th layer is global.
Status ReadLayerTypes(const JsonObject& json, uint32_t window, ModelConfig* config) {
  if (json.Has("layer_types")) {
    ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                     ReadSlidingLayers(json, config->num_hidden_layers));
    SetSlidingLayers(config, window, [&](uint32_t i) { return sliding[i]; });
    return OkStatus();
  }
  uint64_t pattern = kPattern;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    if (!json.Has(key)) continue;
    ASSIGN_OR_RETURN(pattern, json.Uint(key));
    if (pattern == 0) return json.Error(key, "is 0; it must be at least 1");
  }
  SetEachGlobal(window, pattern, config);
  return OkStatus();
}

}  // namespace

// The converter writes, for long, neither the pattern nor the local base; and has added 1 to the
// norms.
Status FinishGemma3Gguf(const GgufFile& gguf, ModelConfig* config) {
  ASSIGN_OR_RETURN(const uint64_t window, gguf.GetUint("gemma3.attention.sliding_window"));
  if (window < 1 || window > kMaxWindow) {
    return absl::InvalidArgumentError(StrCat("metadata gemma3.attention.sliding_window is ", window,
                                             "; it must be in 1..", kMaxWindow));
  }
  RETURN_IF_ERROR(ReadGgufPattern(gguf, static_cast<uint32_t>(window), config));
  config->rope_local_theta = kLocalTheta;
  const struct {
    const char* key;
    float* value;
  } floats[] = {{"gemma3.rope.freq_base_swa", &config->rope_local_theta},
                {"gemma3.attn_logit_softcapping", &config->attn_logit_softcapping},
                {"gemma3.final_logit_softcapping", &config->final_logit_softcapping}};
  for (const auto& [key, value] : floats) {
    if (!gguf.metadata().contains(key)) continue;
    ASSIGN_OR_RETURN(const double number, gguf.GetFloat(key));
    *value = static_cast<float>(number);
    RETURN_IF_ERROR(CheckSoftcap(*value, StrCat("metadata ", key)));
  }
  if (config->rope_local_theta < 1) {
    return absl::InvalidArgumentError("metadata gemma3.rope.freq_base_swa must be at least 1");
  }
  if (config->num_hidden_layers == kLayersOf27B) {
    config->query_pre_attn_scalar =
        static_cast<float>(config->hidden_size) / static_cast<float>(config->num_attention_heads);
  }
  return OkStatus();
}

Status FinishGemma3Hf(const JsonObject& json, ModelConfig* config) {
  config->norm_weight_offset = 1;
  uint64_t window = 4096;
  if (json.Has("sliding_window")) {
    ASSIGN_OR_RETURN(window, json.Uint("sliding_window"));
    if (window < 1 || window > kMaxWindow) {
      return json.Error("sliding_window", StrCat("is ", window, "; it must be in 1..", kMaxWindow));
    }
  }
  RETURN_IF_ERROR(ReadLayerTypes(json, static_cast<uint32_t>(window), config));
  if (json.Has("query_pre_attn_scalar")) {
    ASSIGN_OR_RETURN(const double scalar, json.Float("query_pre_attn_scalar"));
    if (!(scalar >= 1e-6 && scalar <= 1e6)) {
      return json.Error("query_pre_attn_scalar",
                        StrCat("is ", scalar, "; it must be in 1e-6..1e6"));
    }
    config->query_pre_attn_scalar = static_cast<float>(scalar);
  }
  const struct {
    const char* key;
    float* value;
  } caps[] = {{"attn_logit_softcapping", &config->attn_logit_softcapping},
              {"final_logit_softcapping", &config->final_logit_softcapping}};
  for (const auto& [key, value] : caps) {
    if (!json.Has(key)) continue;
    ASSIGN_OR_RETURN(const double cap, json.Float(key));
    *value = static_cast<float>(cap);
    RETURN_IF_ERROR(CheckSoftcap(*value, StrCat("config.json: ", key)));
  }
  ASSIGN_OR_RETURN(const bool bidirectional, json.BoolOr("use_bidirectional_attention", false));
  if (bidirectional) return json.Error("use_bidirectional_attention", "is true: not supported");
  return ReadLocalRope(json, kLocalTheta, config);
}

}  // namespace flotilla::internal
