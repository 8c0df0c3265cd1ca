#include "common/checkpoint/config_source.h"

#include "common/checkpoint/architecture.h"

namespace flotilla::internal {
namespace {

constexpr ConfigField kHidden = {"embedding_length", "hidden_size"};
constexpr ConfigField kHeads = {"attention.head_count", "num_attention_heads"};
constexpr ConfigField kKvHeads = {"attention.head_count_kv", "num_key_value_heads"};
constexpr ConfigField kKeyLength = {"attention.key_length", "head_dim"};
constexpr ConfigField kValueLength = {"attention.value_length", ""};
constexpr ConfigField kRopeDim = {"rope.dimension_count", ""};
constexpr ConfigField kEpsilon = {"attention.layer_norm_rms_epsilon", "rms_norm_eps"};

constexpr ConfigField kWidth = {"feed_forward_length", "intermediate_size"};
constexpr ConfigField kExpertWidth = {"expert_feed_forward_length", "moe_intermediate_size"};
constexpr ConfigField kExpertsPerToken = {"expert_used_count", "num_experts_per_tok"};

// config.json's name of the count is an architecture's own, or another's by transformers.
Status ReadExperts(const ConfigSource& source, ModelConfig* config) {
  constexpr ConfigField kNames[] = {{"expert_count", "num_experts"}, {"", "num_local_experts"}};
  const ConfigField& count =
      source.Has(kNames[1]) && !source.Has(kNames[0]) ? kNames[1] : kNames[0];
  ASSIGN_OR_RETURN(config->num_experts, source.Count(count, kMaxExperts));
  ASSIGN_OR_RETURN(config->num_experts_per_tok,
                   source.Count(kExpertsPerToken, config->num_experts));
  if (uint64_t{config->num_experts} * config->num_hidden_layers <= kMaxExpertsOfAll)
    return OkStatus();
  return source.Error(count, StrCat("is ", config->num_experts, " in ", config->num_hidden_layers,
                                    " layers; at most ", kMaxExpertsOfAll, " of all layers"));
}

Status ReadHeads(const ConfigSource& source, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->num_attention_heads, source.Count(kHeads, kMaxHeads));
  const uint32_t heads = config->num_attention_heads;
  ASSIGN_OR_RETURN(config->num_key_value_heads, source.CountOr(kKvHeads, kMaxHeads, heads));
  if (heads % config->num_key_value_heads != 0) {
    return source.Error(kKvHeads, StrCat("is ", config->num_key_value_heads,
                                         ", which does not divide the ", heads, " query heads"));
  }
  if (!source.Has(kKeyLength) && config->hidden_size % heads != 0) {
    return source.Error(kHeads, StrCat("is ", heads, ", which does not divide the hidden size ",
                                       config->hidden_size));
  }
  ASSIGN_OR_RETURN(config->head_dim,
                   source.CountOr(kKeyLength, kMaxWidth, config->hidden_size / heads));
  if (config->head_dim == 0 || config->head_dim % 2 != 0 ||
      uint64_t{heads} * config->head_dim > kMaxWidth) {
    return source.Error(kKeyLength,
                        StrCat("(the head dimension) is ", config->head_dim,
                               "; it must be even, and all heads at most ", kMaxWidth, " wide"));
  }
  ASSIGN_OR_RETURN(const uint32_t value_dim,
                   source.CountOr(kValueLength, kMaxWidth, config->head_dim));
  if (value_dim != config->head_dim) {
    return source.Error(kValueLength, StrCat("is ", value_dim, "; it must equal the key length ",
                                             config->head_dim));
  }
  ASSIGN_OR_RETURN(config->rope_dim, source.CountOr(kRopeDim, kMaxWidth, config->head_dim));
  if (config->rope_dim % 2 != 0 || config->rope_dim > config->head_dim) {
    return source.Error(
        kRopeDim, StrCat("is ", config->rope_dim,
                         "; it must be even and at most the head dimension ", config->head_dim));
  }
  return OkStatus();
}

}  // namespace

StatusOr<uint32_t> ConfigSource::Count(const ConfigField& field, uint64_t max) const {
  ASSIGN_OR_RETURN(const uint64_t value, Uint(field));
  if (value < 1 || value > max) {
    return Error(field, StrCat("is ", value, "; it must be in 1..", max));
  }
  return static_cast<uint32_t>(value);
}

StatusOr<uint32_t> ConfigSource::CountOr(const ConfigField& field, uint64_t max,
                                         uint32_t fallback) const {
  return Has(field) ? Count(field, max) : fallback;
}

StatusOr<float> ConfigSource::FloatIn(const ConfigField& field, double least, double most) const {
  ASSIGN_OR_RETURN(const double value, Float(field));
  if (!(value >= least && value <= most)) {  // also for NaN
    return Error(field, StrCat("is ", value, "; it must be in ", least, "..", most));
  }
  return static_cast<float>(value);
}

StatusOr<float> ReadTheta(const ConfigSource& source, const ConfigField& field) {
  return source.FloatIn(field, 1, 1e12);
}

Status ReadCommonConfig(const ConfigSource& source, const Architecture& architecture,
                        ModelConfig* config) {
  config->architecture = std::string(architecture.hf);
  config->hidden_act = architecture.hidden_act;
  config->qkv_bias = architecture.qkv_bias;
  config->qk_norm = architecture.qk_norm;
  config->sandwich_norms = architecture.sandwich_norms;
  config->fused_projections = architecture.fused_projections;
  ASSIGN_OR_RETURN(config->num_hidden_layers,
                   source.Count({"block_count", "num_hidden_layers"}, kMaxLayers));
  ASSIGN_OR_RETURN(config->max_position_embeddings,
                   source.Count({"context_length", "max_position_embeddings"}, kMaxContext));
  ASSIGN_OR_RETURN(config->hidden_size, source.Count(kHidden, kMaxWidth));
  if (architecture.experts) RETURN_IF_ERROR(ReadExperts(source, config));
  const bool own_width = architecture.experts && source.Has(kExpertWidth);
  ASSIGN_OR_RETURN(config->intermediate_size,
                   source.Count(own_width ? kExpertWidth : kWidth, kMaxWidth));
  RETURN_IF_ERROR(ReadHeads(source, config));
  config->query_pre_attn_scalar = static_cast<float>(config->head_dim);
  ASSIGN_OR_RETURN(const double epsilon, source.Float(kEpsilon));
  if (!(epsilon > 0.0 && epsilon < 1.0)) {
    return source.Error(kEpsilon, StrCat("is ", epsilon, "; it must be between 0 and 1"));
  }
  config->rms_norm_eps = static_cast<float>(epsilon);
  return OkStatus();
}

}  // namespace flotilla::internal
