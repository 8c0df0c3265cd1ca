// A decoder's forward in double precision, as short as it can be written: no cache, no batch,
// no ranks. The oracle of the model tests on small random checkpoints.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla::testing {

class NaiveLlama {
 public:
  explicit NaiveLlama(const Checkpoint* checkpoint)
      : checkpoint_(*checkpoint), config_(checkpoint->config()) {}

  // Logits of every position of `ids`.
  std::vector<std::vector<double>> Forward(const std::vector<int32_t>& ids) const {
    Rows logits =
        Linear(Hidden(ids), checkpoint_.Find("lm_head.weight") ? "lm_head" : "model.embed_tokens");
    for (auto& row : logits) {
      for (double& logit : row)
        logit = SoftCap(logit / config_.logits_scaling, config_.final_logit_softcapping);
    }
    return logits;
  }

  // Final normed hidden states of every position.
  std::vector<std::vector<double>> Hidden(const std::vector<int32_t>& ids) const {
    const bool four_norms =
        config_.architecture == "Gemma2ForCausalLM" || config_.architecture == "Gemma3ForCausalLM";
    const double scale =
        four_norms ? std::sqrt(config_.hidden_size) : double{config_.embedding_multiplier};
    const Rows embedding = Matrix("model.embed_tokens.weight");
    Rows x;
    for (int32_t id : ids) {
      x.push_back(embedding[static_cast<size_t>(id)]);
      for (double& value : x.back()) value *= scale;
    }
    for (uint32_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string p = StrCat("model.layers.", i, ".");
      Rows attended = Attention(Norm(x, p + "input_layernorm"), i);
      if (four_norms) attended = Norm(attended, p + "post_attention_layernorm");
      Add(attended, &x);
      Rows fed = FeedForward(
          Norm(x, p + (four_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm")),
          p + "mlp.");
      if (four_norms) fed = Norm(fed, p + "post_feedforward_layernorm");
      Add(fed, &x);
    }
    return Norm(x, "model.norm");
  }

  // The last of them or their mean.
  std::vector<double> Embedding(const std::vector<int32_t>& ids, bool mean) const {
    std::vector<std::vector<double>> hidden = Hidden(ids);
    if (!mean) return hidden.back();
    std::vector<double> sum(hidden[0].size());
    for (const std::vector<double>& row : hidden)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
    for (double& value : sum) value /= static_cast<double>(hidden.size());
    return sum;
  }

 private:
  using Rows = std::vector<std::vector<double>>;

  Rows Matrix(const std::string& name) const {
    const TensorView* view = checkpoint_.Find(name);
    CHECK(view != nullptr);
    std::vector<float> values(view->rows * view->cols);
    DequantizeRows(*view, 0, view->rows, values.data());
    Rows rows(view->rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].assign(values.begin() + static_cast<ptrdiff_t>(r * view->cols),
                     values.begin() + static_cast<ptrdiff_t>((r + 1) * view->cols));
    }
    return rows;
  }
  Rows Linear(const Rows& x, const std::string& module) const {
    const Rows weight = Matrix(module + ".weight");
    const bool biased = checkpoint_.Find(module + ".bias") != nullptr;
    const std::vector<double> bias =
        biased ? Matrix(module + ".bias")[0] : std::vector<double>(weight.size());
    Rows out;
    for (const auto& row : x) {
      out.emplace_back();
      for (size_t r = 0; r < weight.size(); ++r) {
        double sum = bias[r];
        for (size_t k = 0; k < row.size(); ++k) sum += weight[r][k] * row[k];
        out.back().push_back(sum);
      }
    }
    return out;
  }
  // Of each run of as many columns as the weight has: whole rows, or heads.
  Rows Norm(const Rows& x, const std::string& module) const {
    const std::vector<double> weight = Matrix(module + ".weight")[0];
    Rows out = x;
    for (auto& row : out) {
      for (size_t begin = 0; begin < row.size(); begin += weight.size()) {
        double squares = 0;
        for (size_t i = 0; i < weight.size(); ++i) squares += row[begin + i] * row[begin + i];
        const double mean = squares / static_cast<double>(weight.size());
        const double scale = 1 / std::sqrt(mean + config_.rms_norm_eps);
        for (size_t i = 0; i < weight.size(); ++i) {
          row[begin + i] *= scale * (weight[i] + config_.norm_weight_offset);
        }
      }
    }
    return out;
  }
  void Add(const Rows& x, Rows* to) const {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) (*to)[t][i] += config_.residual_multiplier * x[t][i];
    }
  }
  static double SoftCap(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

  Rows FeedForward(const Rows& x, const std::string& prefix) const {
    if (config_.num_experts == 0) return OneFeedForward(x, prefix);
    const Rows logits = Linear(x, prefix + "gate");
    std::vector<Rows> experts;
    for (uint32_t e = 0; e < config_.num_experts; ++e)
      experts.push_back(OneFeedForward(x, StrCat(prefix, "experts.", e, ".")));
    Rows out;
    for (size_t t = 0; t < x.size(); ++t) {
      std::vector<std::pair<double, uint32_t>> order;  // the most likely first
      double all = 0, chosen = 0;
      for (uint32_t e = 0; e < config_.num_experts; ++e) {
        order.emplace_back(-std::exp(logits[t][e]), e);
        all += std::exp(logits[t][e]);
      }
      std::sort(order.begin(), order.end());
      order.resize(config_.num_experts_per_tok);
      for (const auto& [weight, e] : order) chosen -= weight;
      out.emplace_back(x[t].size(), 0.0);
      for (const auto& [weight, e] : order) {
        for (size_t i = 0; i < x[t].size(); ++i)
          out[t][i] -= weight / (config_.norm_topk_prob ? chosen : all) * experts[e][t][i];
      }
    }
    return out;
  }
  Rows OneFeedForward(const Rows& x, const std::string& prefix) const {
    Rows gate = Linear(x, prefix + "gate_proj");
    const Rows up = Linear(x, prefix + "up_proj");
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t j = 0; j < gate[t].size(); ++j) {
        const double g = gate[t][j];
        const double silu = g / (1 + std::exp(-g));
        const double gelu =
            0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        gate[t][j] = (config_.hidden_act == HiddenAct::kSilu ? silu : gelu) * up[t][j];
      }
    }
    return Linear(gate, prefix + "down_proj");
  }
  void Rope(double* head, size_t position, bool local) const {
    const uint32_t half = config_.rope_dim / 2;
    const double theta = local ? config_.rope_local_theta : config_.rope_theta;
    for (uint32_t i = 0; i < half; ++i) {
      double angle = position * std::pow(theta, -2.0 * i / config_.rope_dim);
      if (!local && !config_.rope_divisors.empty()) angle /= config_.rope_divisors[i];
      double& a = config_.rope_interleaved ? head[2 * i] : head[i];
      double& b = config_.rope_interleaved ? head[2 * i + 1] : head[i + half];
      const double cosine = config_.rope_magnitude * std::cos(angle);
      const double sine = config_.rope_magnitude * std::sin(angle);
      const double first = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = first;
    }
  }
  Rows Attention(const Rows& x, uint32_t layer) const {
    const std::string prefix = StrCat("model.layers.", layer, ".self_attn.");
    Rows q = Linear(x, prefix + "q_proj");
    Rows k = Linear(x, prefix + "k_proj");
    const Rows v = Linear(x, prefix + "v_proj");
    if (checkpoint_.Find(prefix + "q_norm.weight") != nullptr) {
      q = Norm(q, prefix + "q_norm");
      k = Norm(k, prefix + "k_norm");
    }
    const uint32_t dim = config_.head_dim;
    const uint32_t group = config_.num_attention_heads / config_.num_key_value_heads;
    const bool sliding = config_.is_sliding(layer);
    const bool local = sliding && config_.rope_local_theta > 0;
    for (size_t t = 0; t < x.size() && config_.has_rope(layer); ++t) {
      for (uint32_t h = 0; h < config_.num_attention_heads; ++h) Rope(&q[t][h * dim], t, local);
      for (uint32_t h = 0; h < config_.num_key_value_heads; ++h) Rope(&k[t][h * dim], t, local);
    }
    const double scale = 1 / std::sqrt(static_cast<double>(config_.query_pre_attn_scalar));
    Rows out(x.size(), std::vector<double>(size_t{config_.num_attention_heads} * dim, 0.0));
    for (size_t t = 0; t < x.size(); ++t) {
      const size_t first =
          sliding && t + 1 > config_.sliding_window ? t + 1 - config_.sliding_window : 0;
      for (uint32_t h = 0; h < config_.num_attention_heads; ++h) {
        const size_t kv = size_t{h / group} * dim;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (size_t s = first; s <= t; ++s) {
          double dot = 0;
          for (uint32_t d = 0; d < dim; ++d) dot += q[t][h * dim + d] * k[s][kv + d];
          sum += p[s] = std::exp(SoftCap(dot * scale, config_.attn_logit_softcapping));
        }
        for (size_t s = first; s <= t; ++s) {
          for (uint32_t d = 0; d < dim; ++d) out[t][h * dim + d] += p[s] / sum * v[s][kv + d];
        }
      }
    }
    return Linear(out, prefix + "o_proj");
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
};

}  // namespace flotilla::testing
