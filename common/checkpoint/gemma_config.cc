// What is Gemma 2's and Gemma 3's own in a GGUF's metadata and in a config.json.
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {
namespace {

constexpr float kLocalTheta = 10000.0f;  // Gemma 3's

// What a file that says nothing means.
struct Family {
  std::string_view gguf;   // before the first point of its keys
  uint32_t pattern;        // each so many-th layer is global
  uint32_t layers_of_27b;  // its heads are narrower than its scores' scale says
  float attn_softcap, final_softcap;
  uint64_t window;  // 0: a GGUF must say it
};
constexpr Family kGemma2 = {"gemma2", 2, 46, 50.0f, 30.0f, 4096};
constexpr Family kGemma3 = {"gemma3", 6, 62, 0.0f, 0.0f, 0};

Status CheckSoftcap(float cap, std::string_view key) {
  if (cap >= 0 && cap <= 1e6f) return OkStatus();  // 0: none
  return absl::InvalidArgumentError(StrCat(key, " is ", cap, "; it must be in 0..1e6"));
}

void SetEachGlobal(uint32_t window, uint64_t pattern, ModelConfig* config) {
  SetSlidingLayers(config, window, [&](uint32_t i) { return (i + 1) % pattern != 0; });
}

// A flag for each layer, or each pattern-th layer is global.
Status ReadGgufPattern(const GgufFile& gguf, const Family& family, uint32_t window,
                       ModelConfig* config) {
  const std::string key = StrCat(family.gguf, ".attention.sliding_window_pattern");
  if (const std::vector<int64_t>* flags = gguf.FindInts(key); flags != nullptr) {
    if (flags->size() != config->num_hidden_layers) {
      return absl::InvalidArgumentError(StrCat("metadata ", key, " has ", flags->size(),
                                               " entries but the model ", config->num_hidden_layers,
                                               " layers"));
    }
    SetSlidingLayers(config, window, [&](uint32_t i) { return (*flags)[i] != 0; });
    return OkStatus();
  }
  uint64_t pattern = family.pattern;
  if (gguf.metadata().contains(key)) {
    ASSIGN_OR_RETURN(pattern, gguf.GetUint(key));
    if (pattern == 0) {
      return absl::InvalidArgumentError(StrCat("metadata ", key, " is 0; it must be at least 1"));
    }
  }
  SetEachGlobal(window, pattern, config);
  return OkStatus();
}

Status ReadGgufFloat(const GgufFile& gguf, const std::string& key, float* value) {
  if (!gguf.metadata().contains(key)) return OkStatus();
  ASSIGN_OR_RETURN(const double number, gguf.GetFloat(key));
  *value = static_cast<float>(number);
  return OkStatus();
}

// The converter has added 1 to the norms.
Status FinishGguf(const GgufFile& gguf, const Family& family, ModelConfig* config) {
  const auto key = [&](std::string_view name) { return StrCat(family.gguf, ".", name); };
  const std::string window_key = key("attention.sliding_window");
  uint64_t window = family.window;
  if (window == 0 || gguf.metadata().contains(window_key)) {
    ASSIGN_OR_RETURN(window, gguf.GetUint(window_key));
  }
  if (window < 1 || window > kMaxContext) {
    return absl::InvalidArgumentError(
        StrCat("metadata ", window_key, " is ", window, "; it must be in 1..", kMaxContext));
  }
  RETURN_IF_ERROR(ReadGgufPattern(gguf, family, static_cast<uint32_t>(window), config));
  config->attn_logit_softcapping = family.attn_softcap;
  config->final_logit_softcapping = family.final_softcap;
  const std::pair<const char*, float*> caps[] = {
      {"attn_logit_softcapping", &config->attn_logit_softcapping},
      {"final_logit_softcapping", &config->final_logit_softcapping}};
  for (const auto& [name, value] : caps) {
    RETURN_IF_ERROR(ReadGgufFloat(gguf, key(name), value));
    RETURN_IF_ERROR(CheckSoftcap(*value, StrCat("metadata ", key(name))));
  }
  if (config->num_hidden_layers == family.layers_of_27b) {
    config->query_pre_attn_scalar =
        static_cast<float>(config->hidden_size) / static_cast<float>(config->num_attention_heads);
  }
  return OkStatus();
}

// A layer type for each layer, or each pattern-th layer is global.
Status ReadLayerTypes(const JsonObject& json, const Family& family, uint32_t window,
                      ModelConfig* config) {
  if (json.Has("layer_types")) {
    ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                     ReadSlidingLayers(json, config->num_hidden_layers));
    SetSlidingLayers(config, window, [&](uint32_t i) { return sliding[i]; });
    return OkStatus();
  }
  uint64_t pattern = family.pattern;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    if (!json.Has(key)) continue;
    ASSIGN_OR_RETURN(pattern, json.Uint(key));
    if (pattern == 0) return json.Error(key, "is 0; it must be at least 1");
  }
  SetEachGlobal(window, pattern, config);
  return OkStatus();
}

Status FinishHf(const JsonObject& json, const Family& family, ModelConfig* config) {
  config->norm_weight_offset = 1;
  uint32_t window = 4096;
  if (json.Has("sliding_window")) {
    ASSIGN_OR_RETURN(window, ReadWindow(json));
  }
  RETURN_IF_ERROR(ReadLayerTypes(json, family, window, config));
  config->query_pre_attn_scalar = 256;  // of both, whatever the heads' width is
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
    float fallback;  // null is none
  } caps[] = {{"attn_logit_softcapping", &config->attn_logit_softcapping, family.attn_softcap},
              {"final_logit_softcapping", &config->final_logit_softcapping, family.final_softcap}};
  for (const auto& [key, value, fallback] : caps) {
    if (!json.Contains(key)) *value = fallback;
    if (!json.Has(key)) continue;
    ASSIGN_OR_RETURN(const double cap, json.Float(key));
    *value = static_cast<float>(cap);
    RETURN_IF_ERROR(CheckSoftcap(*value, StrCat("config.json: ", key)));
  }
  ASSIGN_OR_RETURN(const bool bidirectional, json.BoolOr("use_bidirectional_attention", false));
  if (bidirectional) return json.Error("use_bidirectional_attention", "is true: not supported");
  return OkStatus();
}

}  // namespace

Status FinishGemma2Gguf(const GgufFile& gguf, ModelConfig* config) {
  return FinishGguf(gguf, kGemma2, config);
}

Status FinishGemma2Hf(const JsonObject& json, ModelConfig* config) {
  return FinishHf(json, kGemma2, config);
}

// The converter writes, for long, neither the pattern nor the local base.
Status FinishGemma3Gguf(const GgufFile& gguf, ModelConfig* config) {
  constexpr char kKey[] = "gemma3.rope.freq_base_swa";
  config->rope_local_theta = kLocalTheta;
  RETURN_IF_ERROR(ReadGgufFloat(gguf, kKey, &config->rope_local_theta));
  if (!(config->rope_local_theta >= 1)) {
    return absl::InvalidArgumentError(StrCat("metadata ", kKey, " must be at least 1"));
  }
  return FinishGguf(gguf, kGemma3, config);
}

Status FinishGemma3Hf(const JsonObject& json, ModelConfig* config) {
  RETURN_IF_ERROR(FinishHf(json, kGemma3, config));
  return ReadLocalRope(json, kLocalTheta, config);
}

}  // namespace flotilla::internal
