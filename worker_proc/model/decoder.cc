#include "worker_proc/model/decoder.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker_proc/model/feed_forward.h"

namespace flotilla {
namespace {

constexpr PackedModule kPackedModules[] = {
    {"q_proj", "qkv_proj"},        {"k_proj", "qkv_proj"},      {"v_proj", "qkv_proj"},
    {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"},
};

struct DecoderLayer {
  AttentionLayer attention;
  const RopeTable* rope = nullptr;
  std::unique_ptr<VectorWeight> attention_norm;
  std::unique_ptr<LinearWeight> qkv_proj;
  std::unique_ptr<VectorWeight> q_norm, k_norm;  // null: none
  std::unique_ptr<LinearWeight> o_proj;
  std::unique_ptr<VectorWeight> attention_out_norm;  // null: none
  std::unique_ptr<VectorWeight> feedforward_norm;
  FeedForwardWeights feed_forward;
  std::unique_ptr<VectorWeight> feedforward_out_norm;  // null: none
};

std::vector<uint32_t> Sizes(const std::vector<RowRange>& ranges, uint32_t factor) {
  std::vector<uint32_t> sizes;
  sizes.reserve(ranges.size());
  for (const RowRange& range : ranges) sizes.push_back(range.size() * factor);
  return sizes;
}

RowRange Scale(const RowRange& range, uint32_t factor) {
  return {range.begin * factor, range.end * factor};
}

class Decoder final : public Model {
 public:
  Decoder(const ModelEnv& env, DecoderSpec spec)
      : env_(env),
        config_(*env.config),
        spec_(std::move(spec)),
        backend_(*env.backend),
        attention_cols_(Sizes(env.partition.heads, config_.head_dim)),
        hidden_cols_(Sizes(env.partition.hidden, 1)),
        vocab_cols_(Sizes(env.partition.vocab, 1)),
        feed_forward_(env_) {}

  std::span<const PackedModule> packed_modules_mapping() const override { return kPackedModules; }
  Status LoadWeights(WeightLoader* loader) override;
  Status AllocateBuffers() override;
  KvCacheShape kv_shape(uint32_t rank) const override {
    return {config_.num_hidden_layers, env_.page_size, env_.partition.kv_heads[rank].size(),
            config_.head_dim, config_.head_dim};
  }
  StatusOr<Tensor> Forward(const AttentionContext& context) override;
  StatusOr<Tensor> ComputeLogits(Tensor hidden, std::span<const uint32_t> rows) override;
  StatusOr<Tensor> HiddenStates(std::span<const uint32_t> rows) override;

 private:
  AttentionLayer AttentionOf(uint32_t index) const;
  StatusOr<std::unique_ptr<VectorWeight>> LoadNorm(const std::string& module, uint32_t size,
                                                   WeightLoader* loader) const {
    return loader->Vector(module, size, {config_.norm_weight_offset});
  }
  Status LoadAttention(const std::string& prefix, WeightLoader* loader, DecoderLayer* layer) const;
  Status LoadNorms(const std::string& prefix, WeightLoader* loader, DecoderLayer* layer) const;
  StatusOr<DecoderLayer> LoadLayer(uint32_t index, WeightLoader* loader) const;
  Status AllocateShards();
  StatusOr<Projection> Attention(const DecoderLayer& layer, const AttentionContext& context);
  struct Norms {
    const VectorWeight* own = nullptr;  // null: none
    const VectorWeight& next;
    bool for_next_product = false;  // as AddNorm's
  };
  Status AddToResidual(const Projection& projection, const Norms& norms, uint32_t tokens);
  // All ranks' columns of `local` side by side; with one rank `full` is `local` already.
  Status AllGather(std::span<const uint32_t> cols, Tensor local, Tensor full) {
    if (env_.partition.size == 1) return OkStatus();
    return backend_.AllGatherColumns(*env_.collective, cols, local, full);
  }

  const ModelEnv env_;
  const ModelConfig& config_;
  const DecoderSpec spec_;
  Backend& backend_;
  // Columns of each rank in what ranks exchange.
  const std::vector<uint32_t> attention_cols_, hidden_cols_, vocab_cols_;
  FeedForward feed_forward_;

  std::unique_ptr<EmbeddingWeight> embed_tokens_;
  std::vector<std::unique_ptr<RopeTable>> ropes_;
  std::vector<DecoderLayer> layers_;
  std::unique_ptr<VectorWeight> norm_;
  std::unique_ptr<VectorWeight> head_norm_;  // with the head's factor; null: norm_ is
  std::unique_ptr<LinearWeight> lm_head_;

  // Buffers of a step. *_local: this rank's columns; the same memory as the whole if it is alone.
  Tensor residual_, normed_, qkv_;
  Tensor attention_local_, attention_;  // attention's output = o_proj's input
  Tensor projected_local_, projected_;  // output of o_proj and of the feed-forward
  Tensor head_input_, logits_local_, logits_;
  Tensor pooled_residual_, pooled_;  // in and out of HiddenStates
};

AttentionLayer Decoder::AttentionOf(uint32_t index) const {
  const TpPartition& tp = env_.partition;
  AttentionLayer attention;
  attention.layer = index;
  attention.num_heads = tp.my(tp.heads).size();
  attention.num_kv_heads = tp.my(tp.kv_heads).size();
  attention.qk_dim = config_.head_dim;
  attention.v_dim = config_.head_dim;
  attention.scale = spec_.attention_scale;
  attention.softcap = spec_.attn_softcap;
  attention.window = spec_.layers[index].window;
  return attention;
}

Status Decoder::LoadAttention(const std::string& prefix, WeightLoader* loader,
                              DecoderLayer* layer) const {
  const TpPartition& tp = env_.partition;
  const uint32_t head_dim = config_.head_dim;
  const uint32_t q_rows = config_.num_attention_heads * head_dim;
  const uint32_t kv_rows = config_.num_key_value_heads * head_dim;
  const RowRange q = Scale(tp.my(tp.heads), head_dim);
  const RowRange kv = Scale(tp.my(tp.kv_heads), head_dim);
  const Shard qkv[] = {{q_rows, q}, {kv_rows, kv}, {kv_rows, kv}};
  const LinearShape in = {config_.hidden_size, config_.qkv_bias};
  ASSIGN_OR_RETURN(layer->qkv_proj, loader->Linear(prefix + "qkv_proj", qkv, in));
  const Shard out[] = {{config_.hidden_size, tp.my(tp.hidden)}};
  ASSIGN_OR_RETURN(layer->o_proj, loader->Linear(prefix + "o_proj", out, {q_rows}));
  if (config_.qk_norm) {
    ASSIGN_OR_RETURN(layer->q_norm, LoadNorm(prefix + "q_norm", head_dim, loader));
    ASSIGN_OR_RETURN(layer->k_norm, LoadNorm(prefix + "k_norm", head_dim, loader));
  }
  return OkStatus();
}

// HF's post_attention_layernorm stands behind attention only where a layer has four norms.
Status Decoder::LoadNorms(const std::string& prefix, WeightLoader* loader,
                          DecoderLayer* layer) const {
  const auto load = [&](const char* name) {
    return LoadNorm(prefix + name, config_.hidden_size, loader);
  };
  ASSIGN_OR_RETURN(layer->attention_norm, load("input_layernorm"));
  if (!config_.sandwich_norms) {
    ASSIGN_OR_RETURN(layer->feedforward_norm, load("post_attention_layernorm"));
    return OkStatus();
  }
  ASSIGN_OR_RETURN(layer->attention_out_norm, load("post_attention_layernorm"));
  ASSIGN_OR_RETURN(layer->feedforward_norm, load("pre_feedforward_layernorm"));
  ASSIGN_OR_RETURN(layer->feedforward_out_norm, load("post_feedforward_layernorm"));
  return OkStatus();
}

StatusOr<DecoderLayer> Decoder::LoadLayer(uint32_t index, WeightLoader* loader) const {
  const std::string prefix = StrCat("model.layers.", index, ".");
  DecoderLayer layer;
  layer.attention = AttentionOf(index);
  layer.rope = ropes_[spec_.layers[index].rope].get();
  RETURN_IF_ERROR(LoadNorms(prefix, loader, &layer));
  RETURN_IF_ERROR(LoadAttention(prefix + "self_attn.", loader, &layer));
  ASSIGN_OR_RETURN(layer.feed_forward, feed_forward_.LoadWeights(prefix + "mlp.", loader));
  return layer;
}

Status Decoder::LoadWeights(WeightLoader* loader) {
  for (const RopeSpec& rope : spec_.ropes) {
    ASSIGN_OR_RETURN(std::unique_ptr<RopeTable> table, backend_.MakeRope(rope));
    ropes_.push_back(std::move(table));
  }
  ASSIGN_OR_RETURN(embed_tokens_, loader->Embedding("model.embed_tokens", config_.vocab_size,
                                                    config_.hidden_size));
  for (uint32_t i = 0; i < config_.num_hidden_layers; ++i) {
    ASSIGN_OR_RETURN(DecoderLayer layer, LoadLayer(i, loader));
    layers_.push_back(std::move(layer));
    env_.heartbeat->Beat();
  }
  ASSIGN_OR_RETURN(norm_, LoadNorm("model.norm", config_.hidden_size, loader));
  if (spec_.head_factor != 1) {
    ASSIGN_OR_RETURN(head_norm_, loader->Vector("model.norm", config_.hidden_size,
                                                {config_.norm_weight_offset, spec_.head_factor}));
  }
  const Shard head[] = {{config_.vocab_size, env_.partition.my(env_.partition.vocab)}};
  const std::string head_name = loader->Has("lm_head") ? "lm_head" : "model.embed_tokens";
  ASSIGN_OR_RETURN(lm_head_, loader->Linear(head_name, head, {config_.hidden_size}));
  return loader->CheckAllUsed();
}

Status Decoder::AllocateBuffers() {
  const TpPartition& tp = env_.partition;
  const uint32_t tokens = env_.max_tokens;
  const uint32_t hidden = config_.hidden_size;
  const auto make = [&](TensorUse use, uint32_t rows, uint32_t cols) {
    return backend_.NewTensor(use, rows, cols);
  };
  ASSIGN_OR_RETURN(residual_, make(TensorUse::kHidden, tokens, hidden));
  ASSIGN_OR_RETURN(normed_, make(feed_forward_.input_use(), tokens, hidden));
  ASSIGN_OR_RETURN(qkv_, make(TensorUse::kHidden, tokens, layers_[0].attention.qkv_cols()));
  ASSIGN_OR_RETURN(head_input_, make(TensorUse::kLinearInput, env_.max_logits_rows, hidden));
  ASSIGN_OR_RETURN(attention_, make(TensorUse::kLinearInput, tokens,
                                    config_.num_attention_heads * config_.head_dim));
  ASSIGN_OR_RETURN(projected_, make(TensorUse::kHidden, tokens, hidden));
  ASSIGN_OR_RETURN(pooled_residual_, make(TensorUse::kHidden, env_.max_logits_rows, hidden));
  ASSIGN_OR_RETURN(pooled_, make(TensorUse::kLogits, env_.max_logits_rows, hidden));
  if (tp.rank == 0) {
    ASSIGN_OR_RETURN(logits_, make(TensorUse::kLogits, env_.max_logits_rows, config_.vocab_size));
  }
  attention_local_ = attention_;
  projected_local_ = projected_;
  logits_local_ = logits_;
  RETURN_IF_ERROR(feed_forward_.AllocateBuffers());
  return tp.size == 1 ? OkStatus() : AllocateShards();
}

Status Decoder::AllocateShards() {
  const uint32_t tokens = env_.max_tokens;
  const auto make = [&](TensorUse use, uint32_t rows, std::span<const uint32_t> cols) {
    return backend_.NewShard(use, rows, cols, env_.partition.rank);
  };
  ASSIGN_OR_RETURN(attention_local_, make(TensorUse::kLinearInput, tokens, attention_cols_));
  ASSIGN_OR_RETURN(projected_local_, make(TensorUse::kHidden, tokens, hidden_cols_));
  ASSIGN_OR_RETURN(logits_local_, make(TensorUse::kLogits, env_.max_logits_rows, vocab_cols_));
  return OkStatus();
}

// normed_ → what is added to the residual stream
StatusOr<Projection> Decoder::Attention(const DecoderLayer& layer,
                                        const AttentionContext& context) {
  const uint32_t n = context.num_tokens;
  backend_.Linear(*layer.qkv_proj, normed_.First(n), qkv_.First(n));
  HeadRotation rotation = {*layer.rope, layer.attention};
  std::optional<HeadNorms> norms;
  if (layer.q_norm != nullptr) {
    norms.emplace(HeadNorms{*layer.q_norm, *layer.k_norm, config_.rms_norm_eps});
    rotation.norms = &*norms;
  }
  backend_.RotateAndAttend(rotation, context, qkv_.First(n), attention_local_.First(n));
  RETURN_IF_ERROR(AllGather(attention_cols_, attention_local_.First(n), attention_.First(n)));
  return Projection{layer.o_proj.get(), attention_.First(n)};
}

// The projection, or what is in projected_local_, of all ranks, through norms.own → residual_;
// normed_ is that through norms.next.
Status Decoder::AddToResidual(const Projection& projection, const Norms& norms, uint32_t n) {
  const float eps = spec_.norm_eps;
  const Tensor local = projected_local_.First(n);
  const Tensor projected = projected_.First(n);
  const Backend::AddNorm add = {projected, residual_.First(n), norms.next,
                                eps,       normed_.First(n),   norms.for_next_product};
  const bool fuses = norms.own == nullptr;
  const bool alone = env_.partition.size == 1;
  if (projection.weight != nullptr) {
    if (fuses && alone) {
      backend_.LinearAddRmsNorm(*projection.weight, projection.x, add);
      return OkStatus();
    }
    backend_.Linear(*projection.weight, projection.x, local);
  }
  if (fuses && !alone) {
    return backend_.AllGatherAddRmsNorm(*env_.collective, hidden_cols_, local, add);
  }
  RETURN_IF_ERROR(AllGather(hidden_cols_, local, projected));
  if (!fuses) backend_.RmsNorm(projected, *norms.own, eps, projected);
  backend_.AddRmsNorm(projected, add.residual, norms.next, eps, add.out);
  return OkStatus();
}

StatusOr<Tensor> Decoder::Forward(const AttentionContext& context) {
  const uint32_t n = context.num_tokens;
  const float eps = spec_.norm_eps;
  const VectorWeight& last_norm = head_norm_ != nullptr ? *head_norm_ : *norm_;
  const Tensor residual = residual_.First(n);
  const Tensor normed = normed_.First(n);
  backend_.Embed(*embed_tokens_, context, spec_.embed_scale, residual);
  backend_.RmsNorm(residual, *layers_[0].attention_norm, eps, normed);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    ASSIGN_OR_RETURN(const Projection attended, Attention(layer, context));
    RETURN_IF_ERROR(AddToResidual(attended,
                                  {layer.attention_out_norm.get(), *layer.feedforward_norm,
                                   feed_forward_.begins_with_product()},
                                  n));
    ASSIGN_OR_RETURN(const Projection fed,
                     feed_forward_.Run(layer.feed_forward, normed, projected_local_.First(n)));
    const bool is_last = i + 1 == layers_.size();
    const VectorWeight& next_norm = is_last ? last_norm : *layers_[i + 1].attention_norm;
    RETURN_IF_ERROR(AddToResidual(fed, {layer.feedforward_out_norm.get(), next_norm, !is_last}, n));
    env_.heartbeat->Beat();
  }
  return normed;
}

StatusOr<Tensor> Decoder::ComputeLogits(Tensor hidden, std::span<const uint32_t> rows) {
  const auto n = static_cast<uint32_t>(rows.size());
  uint32_t in_place = 0;  // of steps that decode alone they are the first ones
  while (in_place < n && rows[in_place] == in_place) ++in_place;
  const Tensor input = in_place == n ? hidden.First(n) : head_input_.First(n);
  if (in_place < n) backend_.SelectRows(hidden, rows, input);
  backend_.Linear(*lm_head_, input, logits_local_.First(n));
  if (spec_.final_softcap > 0) backend_.SoftCap(spec_.final_softcap, logits_local_.First(n));
  if (env_.partition.size > 1) {
    RETURN_IF_ERROR(backend_.GatherColumns(*env_.collective, vocab_cols_, logits_local_.First(n), 0,
                                           logits_.First(n)));
  }
  env_.heartbeat->Beat();
  return logits_.First(n);
}

// Norms once more what Forward left in the residual stream: there it may have been quantised.
StatusOr<Tensor> Decoder::HiddenStates(std::span<const uint32_t> rows) {
  const auto n = static_cast<uint32_t>(rows.size());
  backend_.SelectRows(residual_, rows, pooled_residual_.First(n));
  backend_.RmsNorm(pooled_residual_.First(n), *norm_, spec_.norm_eps, pooled_.First(n));
  return pooled_.First(n);
}

}  // namespace

DecoderSpec MakeDecoderSpec(const ModelEnv& env) {
  const ModelConfig& config = *env.config;
  DecoderSpec spec;
  const bool is_long =
      config.rope_original_context > 0 && env.max_positions > config.rope_original_context;
  const RopeSpec rope = {config.rope_dim,
                         config.rope_interleaved,
                         config.rope_theta,
                         env.max_positions,
                         is_long ? config.rope_long_divisors : config.rope_divisors,
                         config.rope_magnitude};
  spec.ropes.push_back(rope);
  if (config.rope_local_theta > 0) {
    spec.ropes.push_back(rope);
    spec.ropes[1].theta = config.rope_local_theta;
    spec.ropes[1].divisors.clear();
  }
  const auto still = static_cast<uint32_t>(spec.ropes.size());  // of layers that do not rotate
  if (!config.layers_without_rope.empty()) {
    spec.ropes.push_back(rope);
    spec.ropes.back().divisors.assign(rope.dim / 2, std::numeric_limits<double>::infinity());
  }
  for (uint32_t i = 0; i < config.num_hidden_layers; ++i) {
    const bool sliding = config.is_sliding(i);
    const uint32_t turning = sliding && config.rope_local_theta > 0 ? 1 : 0;
    spec.layers.push_back(
        {sliding ? config.sliding_window : 0, config.has_rope(i) ? turning : still});
  }
  // Each layer adds `residual_multiplier` times what it computes. Here it adds the whole, to a
  // stream that is divided by that; norms take the stream's size out, but for epsilon.
  spec.embed_scale = config.embedding_multiplier / config.residual_multiplier;
  spec.norm_eps = config.rms_norm_eps / (config.residual_multiplier * config.residual_multiplier);
  spec.head_factor = 1 / config.logits_scaling;
  spec.attention_scale = 1.0f / std::sqrt(config.query_pre_attn_scalar);
  spec.attn_softcap = config.attn_logit_softcapping;
  spec.final_softcap = config.final_logit_softcapping;
  return spec;
}

std::unique_ptr<Model> MakeDecoder(const ModelEnv& env, DecoderSpec spec) {
  return std::make_unique<Decoder>(env, std::move(spec));
}

}  // namespace flotilla
