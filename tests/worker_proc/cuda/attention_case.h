// A paged cache in the CUDA kernels' layout, queries, and ragged attention over them: by the
// kernels, as the plan shares the work, and naively in fp64.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/worker_proc/cuda/device_values.h"
#include "worker_proc/cuda/attention_plan.h"

namespace flotilla::cuda::testing {

struct AttentionConfig {
  uint32_t heads, kv_heads, qk_dim, v_dim, page_size;
  uint32_t window = 0;
  float softcap = 0;
  Element kv_type = Element::kFloat32;
};

// A sequence: q_len queries at the end of kv_len keys.
struct Seq {
  uint32_t q_len, kv_len;
};

class AttentionCase {
 public:
  AttentionCase(const AttentionConfig& config, std::vector<Seq> seqs)
      : config_(config), seqs_(std::move(seqs)), k_(config.kv_type), v_(config.kv_type) {
    cu_q_lens_ = {0};
    for (const Seq& seq : seqs_) {
      cu_q_lens_.push_back(cu_q_lens_.back() + seq.q_len);
      kv_lens_.push_back(seq.kv_len);
      pages_per_seq_ = std::max(pages_per_seq_, CeilDiv(seq.kv_len, config.page_size) + 1);
    }
    const auto num_seqs = static_cast<uint32_t>(seqs_.size());
    pages_.resize(size_t{num_seqs} * pages_per_seq_);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(5));
    const size_t rows = pages_.size() * config.kv_heads * config.page_size;
    k_ = Values(config.kv_type, RandomFloats(rows * config.qk_dim, 1));
    v_ = Values(config.kv_type, RandomFloats(rows * config.v_dim, 2));
    q_ = RandomFloats(size_t{cu_q_lens_.back()} * config.heads * config.qk_dim, 3);
    if (!by_mma()) return;
    for (float& q : q_)
      q = Values(config.kv_type, std::vector<float>{q}).At(0);  // as the kernel rounds them
  }

  bool by_mma() const {
    return HasMmaKernel({nullptr, nullptr, config_.kv_type, config_.page_size, config_.kv_heads,
                         config_.qk_dim, config_.v_dim});
  }

  // Everything that no query may see becomes NaN, entries of page tables behind the last page too.
  void Poison() {
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      const uint32_t first = FirstKey(seqs_[s].kv_len - seqs_[s].q_len);
      for (uint32_t key = 0; key < pages_per_seq_ * config_.page_size; ++key) {
        if (key >= first && key < seqs_[s].kv_len) continue;
        for (uint32_t h = 0; h < config_.kv_heads; ++h) {
          for (uint32_t d = 0; d < config_.qk_dim; ++d)
            k_.Set(At(s, key, h, config_.qk_dim) + d, NAN);
          for (uint32_t d = 0; d < config_.v_dim; ++d)
            v_.Set(At(s, key, h, config_.v_dim) + d, NAN);
        }
      }
    }
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      for (uint32_t p = CeilDiv(seqs_[s].kv_len, config_.page_size); p < pages_per_seq_; ++p) {
        junk_entries_.push_back(size_t{s} * pages_per_seq_ + p);
      }
    }
  }

  struct Sharing {
    uint32_t parallel_blocks = 1;
    uint32_t max_part_rows = 0;
    uint32_t item_rows = 0;  // 0: as many as there may be
  };
  // Of the sequences [first, first + count).
  std::vector<float> Run(const Sharing& sharing, uint32_t first, uint32_t count,
                         Element out_type = Element::kFloat32) {
    const uint32_t begin = cu_q_lens_[first];
    std::vector<uint32_t> cu(cu_q_lens_.begin() + first, cu_q_lens_.begin() + first + count + 1);
    for (uint32_t& c : cu) c -= begin;
    return RunBatch(sharing,
                    {begin, std::move(cu), &kv_lens_[first], size_t{first} * pages_per_seq_},
                    out_type);
  }
  std::vector<float> Run(const Sharing& sharing, Element out_type = Element::kFloat32) {
    return Run(sharing, 0, static_cast<uint32_t>(seqs_.size()), out_type);
  }
  // The tokens [begin, end) of the first sequence, all of whose keys are queries.
  std::vector<float> RunChunk(uint32_t begin, uint32_t end) {
    return RunBatch({}, {begin, {0, end - begin}, &end, 0}, Element::kFloat32);
  }

  size_t num_shares() const { return num_shares_; }  // of the last run

  std::vector<double> Naive() const {
    std::vector<double> out;
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      for (uint32_t i = 0; i < seqs_[s].q_len; ++i) {
        for (uint32_t h = 0; h < config_.heads; ++h) NaiveRow(s, i, h, &out);
      }
    }
    return out;
  }

 private:
  struct Batch {
    uint32_t first_token;
    std::vector<uint32_t> cu_q_lens;
    const uint32_t* kv_lens;
    size_t first_page_entry;
  };

  uint32_t FirstKey(uint32_t position) const {
    return config_.window == 0 || position < config_.window ? 0 : position - config_.window + 1;
  }
  size_t At(uint32_t seq, uint32_t key, uint32_t head, uint32_t dim) const {
    const size_t page = pages_[size_t{seq} * pages_per_seq_ + key / config_.page_size];
    return ((page * config_.kv_heads + head) * config_.page_size + key % config_.page_size) * dim;
  }

  void NaiveRow(uint32_t s, uint32_t token, uint32_t head, std::vector<double>* out) const {
    const uint32_t end = seqs_[s].kv_len - seqs_[s].q_len + token + 1;
    const uint32_t kv_head = head / (config_.heads / config_.kv_heads);
    const size_t q = ((size_t{cu_q_lens_[s]} + token) * config_.heads + head) * config_.qk_dim;
    std::vector<double> p(end);
    double sum = 0;
    for (uint32_t key = FirstKey(end - 1); key < end; ++key) {
      double score = 0;
      for (uint32_t d = 0; d < config_.qk_dim; ++d) {
        score += double{q_[q + d]} * k_.At(At(s, key, kv_head, config_.qk_dim) + d);
      }
      score /= std::sqrt(config_.qk_dim);
      if (config_.softcap > 0) score = config_.softcap * std::tanh(score / config_.softcap);
      sum += p[key] = std::exp(score);
    }
    for (uint32_t d = 0; d < config_.v_dim; ++d) {
      double value = 0;
      for (uint32_t key = FirstKey(end - 1); key < end; ++key) {
        value += p[key] / sum * v_.At(At(s, key, kv_head, config_.v_dim) + d);
      }
      out->push_back(value);
    }
  }

  std::vector<float> RunBatch(const Sharing& sharing, const Batch& batch, Element out_type) {
    const auto num_seqs = static_cast<uint32_t>(batch.cu_q_lens.size() - 1);
    const uint32_t group = config_.heads / config_.kv_heads;
    AttentionArgs args;
    args.kv = {k_.data(),        v_.data(),      config_.kv_type, config_.page_size,
               config_.kv_heads, config_.qk_dim, config_.v_dim};
    const uint32_t largest = by_mma() ? kWideItemRows : kItemRows;
    AttentionPlan plan;
    MakeAttentionPlan({.num_seqs = num_seqs,
                       .cu_q_lens = batch.cu_q_lens.data(),
                       .kv_lens = batch.kv_lens,
                       .pages_per_seq = pages_per_seq_,
                       .num_kv_heads = config_.kv_heads,
                       .group = group,
                       .window = config_.window,
                       .parallel_blocks = sharing.parallel_blocks,
                       .max_part_rows = sharing.max_part_rows,
                       .item_rows = sharing.item_rows == 0 ? largest : sharing.item_rows},
                      &plan);
    EXPECT_LE(plan.items.size(), MaxAttentionItems({batch.cu_q_lens.back(), num_seqs, group,
                                                    sharing.max_part_rows, kItemRows}));
    num_shares_ = plan.num_shares;
    plan.items.push_back({});  // as a padded graph has them
    std::shuffle(plan.items.begin(), plan.items.end(), std::mt19937(9));
    const size_t parts = size_t{sharing.max_part_rows} * config_.kv_heads;
    std::vector<float> part_out(parts * config_.v_dim, NAN), part_max(parts, NAN);
    std::vector<float> part_sum(parts, NAN);
    std::vector<uint32_t> pages = pages_;
    for (const size_t entry : junk_entries_) pages[entry] = 0xfffffff0u;
    Values out(out_type, size_t{batch.cu_q_lens.back()} * config_.heads * config_.v_dim);
    args.num_heads = config_.heads;
    args.scale = 1 / std::sqrt(static_cast<float>(config_.qk_dim));
    args.softcap = config_.softcap;
    args.window = config_.window;
    args.q_stride = config_.heads * config_.qk_dim;
    args.q = q_.data() + size_t{batch.first_token} * args.q_stride;
    args.page_indices = pages.data() + batch.first_page_entry;
    args.items = plan.items.data();
    args.num_items = static_cast<uint32_t>(plan.items.size());
    args.wide_items = plan.wide_items;
    args.narrow_items = plan.narrow_items;
    args.part_out = part_out.data();
    args.part_max = part_max.data();
    args.part_sum = part_sum.data();
    std::vector<uint32_t> counters(plan.num_shares * config_.kv_heads);
    args.counters = counters.data();
    args.out = out.data();
    args.out_type = out_type;
    Table().paged_attention(args, nullptr);
    EXPECT_EQ(counters, std::vector<uint32_t>(counters.size()));
    return out.floats();
  }

  const AttentionConfig config_;
  const std::vector<Seq> seqs_;
  std::vector<uint32_t> cu_q_lens_, kv_lens_, pages_;
  std::vector<size_t> junk_entries_;
  uint32_t pages_per_seq_ = 1;
  Values k_, v_;
  std::vector<float> q_;
  size_t num_shares_ = 0;
};

}  // namespace flotilla::cuda::testing
