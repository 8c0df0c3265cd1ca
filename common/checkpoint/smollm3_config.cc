// What is SmolLM3's own: layers whose heads do not rotate ("NoPE", arXiv 2501.18795).
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {
namespace {

constexpr uint32_t kInterval = 4;  // each so many-th layer, where a file says nothing

void SetEachWithout(uint64_t interval, ModelConfig* config) {
  config->layers_without_rope.resize(config->num_hidden_layers);
  for (uint32_t i = 0; i < config->num_hidden_layers; ++i)
    config->layers_without_rope[i] = (i + 1) % interval == 0;
}

Status ReadRotating(const JsonObject& json, ModelConfig* config) {
  uint64_t interval = kInterval;
  if (json.Has("no_rope_layer_interval")) {
    ASSIGN_OR_RETURN(interval, json.Uint("no_rope_layer_interval"));
    if (interval == 0) return json.Error("no_rope_layer_interval", "is 0; it must be at least 1");
  }
  SetEachWithout(interval, config);
  if (!json.Has("no_rope_layers")) return OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> flags, json.Ints("no_rope_layers"));
  if (flags.size() < config->num_hidden_layers) {
    return json.Error("no_rope_layers", StrCat("has ", flags.size(), " entries for ",
                                               config->num_hidden_layers, " layers"));
  }
  for (uint32_t i = 0; i < config->num_hidden_layers; ++i)
    config->layers_without_rope[i] = flags[i] == 0;  // 1: it rotates
  return OkStatus();
}

}  // namespace

// No file says which.
Status FinishSmolLm3Gguf(const GgufFile&, ModelConfig* config) {
  SetEachWithout(kInterval, config);
  return OkStatus();
}

Status FinishSmolLm3Hf(const JsonObject& json, ModelConfig* config) {
  RETURN_IF_ERROR(ReadRotating(json, config));
  ASSIGN_OR_RETURN(const bool use_window, json.BoolOr("use_sliding_window", false));
  if (!use_window || !json.Has("sliding_window")) return OkStatus();
  ASSIGN_OR_RETURN(const uint32_t window, ReadWindow(json));
  std::vector<bool> sliding = config->layers_without_rope;
  if (json.Has("layer_types")) {
    ASSIGN_OR_RETURN(sliding, ReadSlidingLayers(json, config->num_hidden_layers));
  }
  SetSlidingLayers(config, window, [&](uint32_t i) { return sliding[i]; });
  return OkStatus();
}

}  // namespace flotilla::internal
