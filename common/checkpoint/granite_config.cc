// What is Granite's own: four factors (arXiv 2404.05405's muP, as IBM's models have them).
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"

namespace flotilla::internal {
namespace {

constexpr double kLeast = 1e-6, kMost = 1e6;

// Each in a GGUF's metadata, behind "granite.", and in a config.json; 1 where it is in neither.
struct Factor {
  const char* gguf;
  const char* hf;
  float ModelConfig::*value;
};
constexpr Factor kFactors[] = {
    {"embedding_scale", "embedding_multiplier", &ModelConfig::embedding_multiplier},
    {"residual_scale", "residual_multiplier", &ModelConfig::residual_multiplier},
    {"logit_scale", "logits_scaling", &ModelConfig::logits_scaling},
};
constexpr char kGgufAttention[] = "granite.attention.scale";
constexpr char kHfAttention[] = "attention_multiplier";

Status OutOfRange(std::string_view key, double value) {
  return absl::InvalidArgumentError(
      StrCat(key, " is ", value, "; it must be in ", kLeast, "..", kMost));
}
bool InRange(double value) { return value >= kLeast && value <= kMost; }

// What scores are multiplied with.
void SetAttention(double factor, ModelConfig* config) {
  config->query_pre_attn_scalar = static_cast<float>(1 / (factor * factor));
}

}  // namespace

Status FinishGraniteGguf(const GgufFile& gguf, ModelConfig* config) {
  // How files say that heads don't rotate.
  constexpr char kRotates[] = "granite.rope.scaling.finetuned";
  if (gguf.metadata().contains(kRotates)) {
    ASSIGN_OR_RETURN(const bool rotates, gguf.GetBool(kRotates));
    if (!rotates) config->layers_without_rope.assign(config->num_hidden_layers, true);
  }
  for (const Factor& factor : kFactors) {
    const std::string key = StrCat("granite.", factor.gguf);
    if (!gguf.metadata().contains(key)) continue;
    ASSIGN_OR_RETURN(const double value, gguf.GetFloat(key));
    if (!InRange(value)) return OutOfRange(StrCat("metadata ", key), value);
    config->*factor.value = static_cast<float>(value);
  }
  if (!gguf.metadata().contains(kGgufAttention)) return OkStatus();
  ASSIGN_OR_RETURN(const double attention, gguf.GetFloat(kGgufAttention));
  if (attention == 0) return OkStatus();  // the heads' width says it, as elsewhere
  if (!InRange(attention)) return OutOfRange(StrCat("metadata ", kGgufAttention), attention);
  SetAttention(attention, config);
  return OkStatus();
}

Status FinishGraniteHf(const JsonObject& json, ModelConfig* config) {
  for (const Factor& factor : kFactors) {
    if (!json.Has(factor.hf)) continue;
    ASSIGN_OR_RETURN(const double value, json.Float(factor.hf));
    if (!InRange(value)) return OutOfRange(StrCat("config.json: ", factor.hf), value);
    config->*factor.value = static_cast<float>(value);
  }
  double attention = 1;  // not the heads' width
  if (json.Has(kHfAttention)) {
    ASSIGN_OR_RETURN(attention, json.Float(kHfAttention));
    if (!InRange(attention)) return OutOfRange(StrCat("config.json: ", kHfAttention), attention);
  }
  SetAttention(attention, config);
  return OkStatus();
}

}  // namespace flotilla::internal
