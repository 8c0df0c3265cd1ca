#include "common/checkpoint/gguf_config.h"

#include <string>

#include "common/checkpoint/config_source.h"
#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

class GgufSource final : public ConfigSource {
 public:
  GgufSource(const GgufFile& gguf, std::string_view architecture)
      : gguf_(gguf), architecture_(architecture) {}

  std::string Key(const ConfigField& field) const { return StrCat(architecture_, ".", field.gguf); }
  bool Has(const ConfigField& field) const override {
    return !field.gguf.empty() && gguf_.metadata().contains(Key(field));
  }
  StatusOr<uint64_t> Uint(const ConfigField& field) const override {
    return gguf_.GetUint(Key(field));
  }
  StatusOr<double> Float(const ConfigField& field) const override {
    return gguf_.GetFloat(Key(field));
  }
  Status Error(const ConfigField& field, std::string_view problem) const override {
    return absl::InvalidArgumentError(StrCat("metadata ", Key(field), " ", problem));
  }
  StatusOr<std::string_view> String(const ConfigField& field) const {
    return gguf_.GetString(Key(field));
  }

 private:
  const GgufFile& gguf_;
  const std::string_view architecture_;
};

const TensorView* FindTensor(const GgufFile& gguf, std::string_view gguf_name) {
  for (const TensorView& tensor : gguf.tensors()) {
    if (tensor.name == gguf_name) return &tensor;
  }
  return nullptr;
}

// What frequencies are divided by.
Status ReadFactors(const GgufFile& gguf, std::string_view name, uint32_t half,
                   std::vector<double>* out) {
  const TensorView* factors = FindTensor(gguf, name);
  if (factors == nullptr || factors->dtype != DType::kF32 || factors->rows != 1 ||
      factors->cols != half) {
    return absl::InvalidArgumentError(StrCat("tensor ", Quote(name), " must be ", half,
                                             " floats, half of the rotating dimensions"));
  }
  std::vector<float> values(half);
  DequantizeRows(*factors, 0, 1, values.data());
  for (const float value : values) {
    if (!(value >= 1e-6f && value <= 1e6f)) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(name), " has the value ", value, "; not within 1e-6..1e6"));
    }
  }
  out->assign(values.begin(), values.end());
  return OkStatus();
}

Status ReadLongRope(const GgufFile& gguf, const GgufSource& source, ModelConfig* config) {
  constexpr ConfigField kOriginal = {"rope.scaling.original_context_length", ""};
  constexpr ConfigField kMagnitude = {"rope.scaling.attn_factor", ""};
  const uint32_t half = config->rope_dim / 2;
  RETURN_IF_ERROR(ReadFactors(gguf, kShortRopeFactorsTensor, half, &config->rope_divisors));
  RETURN_IF_ERROR(ReadFactors(gguf, kLongRopeFactorsTensor, half, &config->rope_long_divisors));
  ASSIGN_OR_RETURN(config->rope_original_context, source.Count(kOriginal, kMaxContext));
  if (!source.Has(kMagnitude)) return OkStatus();
  ASSIGN_OR_RETURN(config->rope_magnitude, source.FloatIn(kMagnitude, 1e-3, 1e3));
  return OkStatus();
}

Status ReadRopeScaling(const GgufFile& gguf, const GgufSource& source, ModelConfig* config) {
  constexpr ConfigField kType = {"rope.scaling.type", ""};
  constexpr ConfigField kFactor = {"rope.scaling.factor", ""};
  constexpr ConfigField kOldFactor = {"rope.scale_linear", ""};
  const uint32_t half = config->rope_dim / 2;
  if (source.Has(kType)) {
    ASSIGN_OR_RETURN(const std::string_view type, source.String(kType));
    if (type != "none" && type != "linear" && type != "longrope") {
      return source.Error(kType, StrCat("is ", Quote(type),
                                        "; only 'none', 'linear' and 'longrope' are supported"));
    }
    if (type == "longrope" && FindTensor(gguf, kLongRopeFactorsTensor) == nullptr)
      return source.Error(kType, StrCat("is 'longrope', but the tensor ",
                                        Quote(kLongRopeFactorsTensor), " is missing"));
    if (type == "linear") {
      ASSIGN_OR_RETURN(const float factor, source.FloatIn(kFactor, 1, 1e6));
      config->rope_divisors.assign(half, factor);
    }
  } else if (source.Has(kFactor) || source.Has(kOldFactor)) {
    // Older converters name no type and mean linear; 0 is none.
    const ConfigField& field = source.Has(kFactor) ? kFactor : kOldFactor;
    ASSIGN_OR_RETURN(const float factor, source.FloatIn(field, 0, 1e6));
    if (factor != 0) config->rope_divisors.assign(half, factor);
  }
  if (FindTensor(gguf, kLongRopeFactorsTensor) != nullptr)
    return ReadLongRope(gguf, source, config);
  if (FindTensor(gguf, kRopeFactorsTensor) == nullptr) return OkStatus();
  return ReadFactors(gguf, kRopeFactorsTensor, half, &config->rope_divisors);
}

constexpr ConfigField kExperts = {"expert_count", ""};

// What would change the mathematics and is not implemented is refused, not ignored.
Status RefuseUnsupported(const GgufFile& gguf, const GgufSource& source, bool experts_allowed) {
  constexpr ConfigField kCausal = {"attention.causal", ""};
  if (source.Has(kCausal)) {
    ASSIGN_OR_RETURN(const bool causal, gguf.GetBool(source.Key(kCausal)));
    if (!causal) {
      return source.Error(kCausal,
                          "is false; models that attend in both directions, as some for "
                          "embeddings do, are not supported");
    }
  }
  if (experts_allowed || !source.Has(kExperts)) return OkStatus();
  ASSIGN_OR_RETURN(const uint64_t experts, source.Uint(kExperts));
  if (experts == 0) return OkStatus();
  return source.Error(kExperts, StrCat("is ", experts,
                                       "; experts are not supported in this architecture, but in "
                                       "llama (Mixtral) and qwen3moe"));
}

// The embedding's rows decide; what the metadata says must agree.
Status ReadVocab(const GgufFile& gguf, const GgufSource& source, ModelConfig* config) {
  constexpr ConfigField kVocab = {"vocab_size", ""};
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const TensorView* embedding = FindTensor(gguf, "token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError("tensor 'token_embd.weight' is missing");
  }
  if (embedding->rows > kMaxVocab) {
    return absl::InvalidArgumentError(StrCat("tensor 'token_embd.weight' has ", embedding->rows,
                                             " rows; the limit is ", kMaxVocab));
  }
  config->vocab_size = static_cast<uint32_t>(embedding->rows);
  ASSIGN_OR_RETURN(const uint32_t vocab, source.CountOr(kVocab, kMaxVocab, config->vocab_size));
  if (vocab != config->vocab_size) {
    return source.Error(
        kVocab, StrCat("is ", vocab, " but token_embd.weight has ", config->vocab_size, " rows"));
  }
  const std::vector<std::string_view>* tokens = gguf.FindStrings(kTokens);
  if (tokens != nullptr && tokens->size() != config->vocab_size) {
    return absl::InvalidArgumentError(StrCat("metadata ", kTokens, " has ", tokens->size(),
                                             " entries but token_embd.weight ", config->vocab_size,
                                             " rows"));
  }
  config->tie_word_embeddings = FindTensor(gguf, "output.weight") == nullptr;
  return OkStatus();
}

}  // namespace

bool HasExperts(const GgufFile& gguf, std::string_view architecture) {
  const StatusOr<uint64_t> experts = GgufSource(gguf, architecture).Uint(kExperts);
  return experts.ok() && *experts > 0;
}

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf, const Architecture& architecture) {
  const GgufSource source(gguf, architecture.gguf);
  RETURN_IF_ERROR(RefuseUnsupported(gguf, source, architecture.experts));
  ModelConfig config;
  if (const auto name = gguf.GetString("general.name"); name.ok()) config.name = std::string(*name);
  RETURN_IF_ERROR(ReadCommonConfig(source, architecture, &config));
  constexpr ConfigField kTheta = {"rope.freq_base", ""};
  config.rope_theta = static_cast<float>(architecture.rope_theta);
  if (source.Has(kTheta)) {
    ASSIGN_OR_RETURN(config.rope_theta, ReadTheta(source, kTheta));
  }
  config.rope_interleaved = architecture.gguf_permutes_qk;
  RETURN_IF_ERROR(ReadRopeScaling(gguf, source, &config));
  RETURN_IF_ERROR(ReadVocab(gguf, source, &config));
  if (architecture.finish_gguf != nullptr) RETURN_IF_ERROR(architecture.finish_gguf(gguf, &config));
  return config;
}

}  // namespace flotilla::internal
