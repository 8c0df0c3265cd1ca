// Llama's forward in double precision, as short as it can be written: no cache, no batch, no ranks.
// The oracle of the model tests on small random checkpoints.
#pragma once

#include <cmath>
#include <string>
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
    return Linear(Hidden(ids),
                  checkpoint_.Find("lm_head.weight") ? "lm_head" : "model.embed_tokens");
  }

  // Final normed hidden states of every position.
  std::vector<std::vector<double>> Hidden(const std::vector<int32_t>& ids) const {
    using Rows = std::vector<std::vector<double>>;
    const Rows embedding = Matrix("model.embed_tokens");
    Rows x;
    for (int32_t id : ids) x.push_back(embedding[static_cast<size_t>(id)]);
    for (uint32_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string p = StrCat("model.layers.", i, ".");
      Add(Attention(Norm(x, p + "input_layernorm"), p + "self_attn."), &x);
      const Rows h = Norm(x, p + "post_attention_layernorm");
      Rows gate = Linear(h, p + "mlp.gate_proj");
      const Rows up = Linear(h, p + "mlp.up_proj");
      for (size_t t = 0; t < gate.size(); ++t) {
        for (size_t j = 0; j < gate[t].size(); ++j) {
          gate[t][j] = gate[t][j] / (1 + std::exp(-gate[t][j])) * up[t][j];
        }
      }
      Add(Linear(gate, p + "mlp.down_proj"), &x);
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

  Rows Matrix(const std::string& module) const {
    const TensorView* view = checkpoint_.Find(module + ".weight");
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
    const Rows weight = Matrix(module);
    Rows out;
    for (const auto& row : x) {
      out.emplace_back();
      for (const auto& w : weight) {
        double sum = 0;
        for (size_t k = 0; k < w.size(); ++k) sum += w[k] * row[k];
        out.back().push_back(sum);
      }
    }
    return out;
  }
  Rows Norm(const Rows& x, const std::string& module) const {
    const std::vector<double> weight = Matrix(module)[0];
    Rows out = x;
    for (auto& row : out) {
      double squares = 0;
      for (double value : row) squares += value * value;
      const double scale = 1 / std::sqrt(squares / row.size() + config_.rms_norm_eps);
      for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * weight[i];
    }
    return out;
  }
  static void Add(const Rows& x, Rows* to) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) (*to)[t][i] += x[t][i];
    }
  }
  void Rope(double* head, size_t position) const {
    const uint32_t half = config_.rope_dim / 2;
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(config_.rope_theta, -2.0 * i / config_.rope_dim);
      double& a = config_.rope_interleaved ? head[2 * i] : head[i];
      double& b = config_.rope_interleaved ? head[2 * i + 1] : head[i + half];
      const double first = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = first;
    }
  }
  Rows Attention(const Rows& x, const std::string& prefix) const {
    Rows q = Linear(x, prefix + "q_proj");
    Rows k = Linear(x, prefix + "k_proj");
    const Rows v = Linear(x, prefix + "v_proj");
    const uint32_t dim = config_.head_dim;
    const uint32_t group = config_.num_attention_heads / config_.num_key_value_heads;
    for (size_t t = 0; t < x.size(); ++t) {
      for (uint32_t h = 0; h < config_.num_attention_heads; ++h) Rope(&q[t][h * dim], t);
      for (uint32_t h = 0; h < config_.num_key_value_heads; ++h) Rope(&k[t][h * dim], t);
    }
    Rows out(x.size(), std::vector<double>(size_t{config_.num_attention_heads} * dim, 0.0));
    for (size_t t = 0; t < x.size(); ++t) {
      for (uint32_t h = 0; h < config_.num_attention_heads; ++h) {
        const size_t kv = size_t{h / group} * dim;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (uint32_t d = 0; d < dim; ++d) dot += q[t][h * dim + d] * k[s][kv + d];
          sum += p[s] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        }
        for (size_t s = 0; s <= t; ++s) {
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
