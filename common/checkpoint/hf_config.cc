#include "common/checkpoint/hf_config.h"

#include <string>

#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/gguf_cursor.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr uint32_t kMistralWindow = 4096;  // where the file has no sliding_window; null: none

class HfSource final : public ConfigSource {
 public:
  explicit HfSource(const JsonObject& json) : json_(json) {}
  bool Has(const ConfigField& field) const override {
    return !field.hf.empty() && json_.Has(field.hf);
  }
  StatusOr<uint64_t> Uint(const ConfigField& field) const override { return json_.Uint(field.hf); }
  StatusOr<double> Float(const ConfigField& field) const override { return json_.Float(field.hf); }
  Status Error(const ConfigField& field, std::string_view problem) const override {
    return json_.Error(field.hf, problem);
  }

 private:
  const JsonObject& json_;
};

Status CheckHiddenAct(const JsonObject& json, HiddenAct wanted) {
  const char* const key = json.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
  if (!json.Has(key)) return OkStatus();
  ASSIGN_OR_RETURN(const std::string_view act, json.String(key));
  const std::string_view name = wanted == HiddenAct::kSilu ? "silu" : "gelu_pytorch_tanh";
  if (act == name) return OkStatus();
  return json.Error(key, StrCat("is ", Quote(act), "; only ", name, " is supported here"));
}

// Variants of an architecture that have other tensors or weights.
Status RefuseUnsupported(const JsonObject& json) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    ASSIGN_OR_RETURN(const bool bias, json.BoolOr(key, false));
    if (bias) return json.Error(key, "is true, which is not supported");
  }
  return ReadFp8Config(json).status();
}

}  // namespace

Status FinishMistralHf(const JsonObject& json, ModelConfig* config) {
  uint32_t window = kMistralWindow;
  if (json.Contains("sliding_window")) {
    if (!json.Has("sliding_window")) return OkStatus();
    ASSIGN_OR_RETURN(window, ReadWindow(json));
  }
  SetWindowOfAllLayers(window, config);
  return OkStatus();
}

Status FinishQwenHf(const JsonObject& json, ModelConfig* config) {
  ASSIGN_OR_RETURN(const bool use_window, json.BoolOr("use_sliding_window", false));
  if (!use_window) return OkStatus();
  ASSIGN_OR_RETURN(const uint32_t window, ReadWindow(json));
  if (json.Has("layer_types")) {
    ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                     ReadSlidingLayers(json, config->num_hidden_layers));
    SetSlidingLayers(config, window, [&](uint32_t i) { return sliding[i]; });
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const uint64_t full, json.Uint("max_window_layers"));
  SetSlidingLayers(config, window, [&](uint32_t i) { return i >= full; });
  return OkStatus();
}

StatusOr<std::optional<Fp8Config>> ReadHfFp8Config(std::string_view text) {
  ASSIGN_OR_RETURN(const boost::json::value document,
                   ParseJsonObject("config.json", text, kMaxConfigBytes));
  return ReadFp8Config(JsonObject(&document.get_object(), "config.json: "));
}

StatusOr<ModelConfig> ReadHfConfig(std::string_view text) {
  ASSIGN_OR_RETURN(const boost::json::value document,
                   ParseJsonObject("config.json", text, kMaxConfigBytes));
  const JsonObject json(&document.get_object(), "config.json: ");
  ASSIGN_OR_RETURN(const std::vector<std::string_view> names, json.Strings("architectures"));
  if (names.size() != 1) return json.Error("architectures", "must have one entry");
  ASSIGN_OR_RETURN(const Architecture* architecture, FindHfArchitecture(names[0]));
  RETURN_IF_ERROR(RefuseUnsupported(json));
  RETURN_IF_ERROR(CheckHiddenAct(json, architecture->hidden_act));
  const HfSource source(json);
  ModelConfig config;
  RETURN_IF_ERROR(ReadCommonConfig(source, *architecture, &config));
  ASSIGN_OR_RETURN(config.vocab_size, source.Count({"", "vocab_size"}, kMaxVocab));
  ASSIGN_OR_RETURN(config.tie_word_embeddings,
                   json.BoolOr("tie_word_embeddings", architecture->tied));
  RETURN_IF_ERROR(ReadRope(json, *architecture, &config));
  if (architecture->finish_hf != nullptr) RETURN_IF_ERROR(architecture->finish_hf(json, &config));
  return config;
}

}  // namespace flotilla::internal
