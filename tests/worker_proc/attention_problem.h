// A cache of any type, queries, and attention over them: by a kernel and, naively, in fp64 on what
// the cache holds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/cpu/attention_items.h"

namespace flotilla::cpu::testing {

struct Config {
  uint32_t heads, kv_heads, qk_dim, v_dim, page_size;
  KvType type = KvType::kFloat32;
  uint32_t window = 0;
  float softcap = 0;
};
// int8 as kernels.h describes it, written down once more. Returns the scale.
inline float QuantizeRow(const std::vector<float>& x, int8_t* out) {
  float max = 0;
  bool finite = true;
  for (const float value : x) {
    finite = finite && std::isfinite(value);
    max = std::max(max, std::abs(value));
  }
  std::fill_n(out, x.size(), int8_t{0});
  if (!finite) return NAN;
  if (max < 1e-30f) return 0;
  const float inverse = 127.0f / max;
  for (size_t d = 0; d < x.size(); ++d) {
    out[d] = static_cast<int8_t>(std::nearbyint(x[d] * inverse));
  }
  return max / 127.0f;
}

// Blocks of RotationSize times the Walsh-Hadamard matrix, which is its own inverse but for that
// factor.
inline std::vector<double> Rotated(const std::vector<double>& x) {
  const auto size = RotationSize(static_cast<uint32_t>(x.size()));
  std::vector<double> out(x.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t block = i / size * size;
    for (size_t j = 0; j < size; ++j) {
      const bool negative = std::popcount((i - block) & j) % 2 == 1;
      out[i] += negative ? -x[block + j] : x[block + j];
    }
  }
  return out;
}

// The K or V of a layer in float, [head of a page][elements of the head], and how the cache has it.
class KvHeads {
 public:
  KvHeads() = default;
  KvHeads(const KvGeometry& kv, bool keys, std::vector<float> values)
      : kv_(kv), keys_(keys), dim_(keys ? kv.qk_dim : kv.v_dim), values_(std::move(values)) {}

  float& At(size_t head, uint32_t key, uint32_t d) { return values_[Index(head, key, d)]; }
  // What attention reads.
  double Kept(size_t head, uint32_t key, uint32_t d) const { return kept_[Index(head, key, d)]; }
  // After the last change.
  void Store() {
    const size_t row_bytes = KvRowBytes(kv_.type, dim_);
    const size_t num_heads = values_.size() / (size_t{dim_} * kv_.page_size);
    pages_.assign(num_heads * row_bytes * kv_.page_size, 0);
    kept_.assign(values_.begin(), values_.end());
    for (size_t head = 0; head < num_heads; ++head) {
      for (uint32_t key = 0; key < kv_.page_size; ++key) {
        StoreRow(head, key, pages_.data() + head * row_bytes * kv_.page_size);
      }
    }
  }
  const void* pages() const { return pages_.data(); }

 private:
  size_t InHead(uint32_t key, uint32_t d) const {
    const uint32_t offset = key % kv_.page_size;
    return keys_ ? size_t{d} * kv_.page_size + offset : size_t{offset} * dim_ + d;
  }
  size_t Index(size_t head, uint32_t key, uint32_t d) const {
    return head * dim_ * kv_.page_size + InHead(key, d);
  }
  void StoreRow(size_t head, uint32_t key, uint8_t* out) {
    std::vector<double> row(dim_);
    for (uint32_t d = 0; d < dim_; ++d) row[d] = At(head, key, d);
    if (kv_.type == KvType::kInt8) {
      row = StoreInt8Row(row, key, out);
    } else if (kv_.type == KvType::kBFloat16) {
      for (uint32_t d = 0; d < dim_; ++d) {
        const uint16_t half = ToBFloat16(At(head, key, d));
        std::memcpy(out + InHead(key, d) * sizeof(half), &half, sizeof(half));
        row[d] = FromBFloat16(half);
      }
    } else {
      for (uint32_t d = 0; d < dim_; ++d) {
        std::memcpy(out + InHead(key, d) * sizeof(float), &At(head, key, d), sizeof(float));
      }
    }
    for (uint32_t d = 0; d < dim_; ++d) kept_[Index(head, key, d)] = row[d];
  }
  // Returns what it means.
  std::vector<double> StoreInt8Row(const std::vector<double>& row, uint32_t key, uint8_t* out) {
    const std::vector<double> values = keys_ ? Rotated(row) : row;
    std::vector<int8_t> bytes(dim_);
    float scale = QuantizeRow({values.begin(), values.end()}, bytes.data());
    if (keys_) scale /= static_cast<float>(RotationSize(dim_));
    std::vector<double> meant(dim_);
    for (uint32_t d = 0; d < dim_; ++d) {
      std::memcpy(out + InHead(key, d), &bytes[d], 1);
      meant[d] = double{scale} * bytes[d];
    }
    std::memcpy(out + size_t{dim_} * kv_.page_size + key % kv_.page_size * sizeof(float), &scale,
                sizeof(float));
    return keys_ ? Rotated(meant) : meant;
  }

  KvGeometry kv_;
  bool keys_ = false;
  uint32_t dim_ = 0;
  std::vector<float> values_;
  std::vector<double> kept_;
  std::vector<uint8_t> pages_;
};

// A sequence: q_len queries at the end of kv_len keys.
struct Seq {
  uint32_t q_len, kv_len;
};

// A cache and queries; page tables are shuffled so that pages of sequences mix.
class Problem {
 public:
  Problem(const Config& config, std::vector<Seq> seqs) : config_(config), seqs_(std::move(seqs)) {
    cu_q_lens_ = {0};
    for (const Seq& seq : seqs_) {
      cu_q_lens_.push_back(cu_q_lens_.back() + seq.q_len);
      kv_lens_.push_back(seq.kv_len);
      pages_per_seq_ =
          std::max(pages_per_seq_, (seq.kv_len + config.page_size - 1) / config.page_size + 1);
    }
    const auto num_seqs = static_cast<uint32_t>(seqs_.size());
    const uint32_t num_pages = num_seqs * pages_per_seq_;
    pages_.resize(num_pages);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(5));
    const KvGeometry kv = geometry();
    const size_t heads = size_t{num_pages} * config.kv_heads;
    k_ = KvHeads(kv, true, RandomFloats(heads * kv.k_head_size(), 1));
    v_ = KvHeads(kv, false, RandomFloats(heads * kv.v_head_size(), 2));
    k_.Store();
    v_.Store();
    q_ = RandomFloats(size_t{cu_q_lens_.back()} * config.heads * config.qk_dim, 3);
  }

  KvGeometry geometry() const {
    return {config_.page_size, config_.kv_heads, config_.qk_dim, config_.v_dim, config_.type};
  }
  // A key's row of K, or V, becomes `value` throughout.
  void Fill(bool of_k, uint32_t seq, uint32_t key, uint32_t head, float value) {
    KvHeads& heads = of_k ? k_ : v_;
    const uint32_t dim = of_k ? config_.qk_dim : config_.v_dim;
    for (uint32_t d = 0; d < dim; ++d) heads.At(Head(seq, key, head), key, d) = value;
  }
  void Store() {
    k_.Store();
    v_.Store();
  }

  // max_part_rows: 0: keys are never cut.
  void set_num_pieces(uint32_t pieces, uint32_t max_part_rows = 0) {
    num_pieces_ = pieces;
    max_part_rows_ = max_part_rows;
  }

  // Everything a query must not see becomes NaN.
  void PoisonPadding() {
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      const uint32_t first = FirstKey(kv_lens_[s] - seqs_[s].q_len, config_.window);
      for (uint32_t key = 0; key < pages_per_seq_ * config_.page_size; ++key) {
        if (key >= first && key < kv_lens_[s]) continue;
        for (uint32_t h = 0; h < config_.kv_heads; ++h) {
          for (const bool of_k : {true, false}) Fill(of_k, s, key, h, NAN);
        }
      }
    }
    Store();
  }

  // The sequences [first_seq, first_seq + num_seqs) as a batch of their own.
  std::vector<float> Run(const KernelTable& table, uint32_t first_seq, uint32_t num_seqs) {
    const uint32_t begin = cu_q_lens_[first_seq];
    std::vector<uint32_t> cu(cu_q_lens_.begin() + first_seq,
                             cu_q_lens_.begin() + first_seq + num_seqs + 1);
    for (uint32_t& c : cu) c -= begin;
    return RunBatch(table, begin, cu, &kv_lens_[first_seq],
                    &pages_[size_t{first_seq} * pages_per_seq_]);
  }
  // A chunk of the first sequence, which must be all queries: its tokens [begin, end).
  std::vector<float> RunChunk(const KernelTable& table, uint32_t begin, uint32_t end) {
    return RunBatch(table, begin, {0, end - begin}, &end, pages_.data());
  }
  std::vector<float> Run(const KernelTable& table) {
    return Run(table, 0, static_cast<uint32_t>(seqs_.size()));
  }

  std::vector<double> Naive() {
    std::vector<double> out;
    const uint32_t group = config_.heads / config_.kv_heads;
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      for (uint32_t i = 0; i < seqs_[s].q_len; ++i) {
        const uint32_t len = seqs_[s].kv_len - seqs_[s].q_len + i + 1;
        for (uint32_t h = 0; h < config_.heads; ++h) {
          const float* q = &q_[(size_t{cu_q_lens_[s]} + i) * config_.heads * config_.qk_dim +
                               h * config_.qk_dim];
          std::vector<double> p(len);
          double max = -1e300, sum = 0;
          const uint32_t first = FirstKey(len - 1, config_.window);
          for (uint32_t key = first; key < len; ++key) {
            for (uint32_t d = 0; d < config_.qk_dim; ++d) {
              p[key] += static_cast<double>(q[d]) * k_.Kept(Head(s, key, h / group), key, d);
            }
            p[key] /= std::sqrt(static_cast<double>(config_.qk_dim));
            const double cap = config_.softcap;
            if (cap > 0) p[key] = cap * std::tanh(p[key] / cap);
            max = std::max(max, p[key]);
          }
          for (uint32_t key = first; key < len; ++key) sum += p[key] = std::exp(p[key] - max);
          for (uint32_t d = 0; d < config_.v_dim; ++d) {
            double value = 0;
            for (uint32_t key = first; key < len; ++key) {
              value += p[key] * v_.Kept(Head(s, key, h / group), key, d);
            }
            out.push_back(value / sum);
          }
        }
      }
    }
    return out;
  }

 private:
  std::vector<float> RunBatch(const KernelTable& table, uint32_t first_token,
                              const std::vector<uint32_t>& cu_q_lens, const uint32_t* kv_lens,
                              const uint32_t* page_indices) {
    AttentionArgs args;
    args.kv = geometry();
    args.num_heads = config_.heads;
    args.scale = 1 / std::sqrt(static_cast<float>(config_.qk_dim));
    args.window = config_.window;
    args.softcap = config_.softcap;
    args.q_stride = size_t{config_.heads} * config_.qk_dim;
    args.q = q_.data() + first_token * args.q_stride;
    args.k_pages = k_.pages();
    args.v_pages = v_.pages();
    args.cu_q_lens = cu_q_lens.data();
    args.kv_lens = kv_lens;
    args.page_indices = page_indices;
    args.pages_per_seq = pages_per_seq_;
    AttentionItems items;
    const auto num_seqs = static_cast<uint32_t>(cu_q_lens.size() - 1);
    const uint32_t group = config_.heads / config_.kv_heads;
    MakeAttentionItems({num_seqs, cu_q_lens.data(), kv_lens, config_.kv_heads, group, num_pieces_,
                        config_.window, max_part_rows_},
                       &items);
    std::vector<float> out(size_t{cu_q_lens.back()} * config_.heads * config_.v_dim, NAN);
    Rows parts(max_part_rows_, config_.v_dim);
    // The last split first: the order in which they are computed does not matter.
    std::reverse(items.items.begin(), items.items.end());
    for (const AttentionItem& item : items.items) {
      const uint32_t rows = (item.token_end - item.token_begin) * group;
      Rows whole(rows, config_.v_dim);
      const bool split = item.split != kAllSplits;
      const AttentionPart part = split ? parts.From(item.part_row) : whole.From(0);
      RunItem(table, args, item, &item == &items.items.back() ? nullptr : &item + 1, part);
      if (!split) CopyOut(args, item, whole.out, out.data());
    }
    for (const AttentionItems::Merge& merge : items.merges) {
      const uint32_t rows = (merge.item.token_end - merge.item.token_begin) * group;
      Rows whole(rows, config_.v_dim);
      for (uint32_t i = 0; i < merge.num_parts; ++i) {
        MergeAttention(parts.From(merge.item.part_row + i * rows), rows, config_.v_dim,
                       whole.From(0));
      }
      FinishAttention(whole.From(0), rows, config_.v_dim);
      CopyOut(args, merge.item, whole.out, out.data());
    }
    return out;
  }

  // Memory of an AttentionPart, and one float more, of which nobody may know.
  struct Rows {
    Rows(uint32_t rows, uint32_t dim)
        : v_dim(dim), out(size_t{rows} * dim + 1, -7.0f), max(rows + 1, -7.0f), sum(rows + 1, 0) {}
    AttentionPart From(uint32_t row) {
      return {out.data() + size_t{row} * v_dim, max.data() + row, sum.data() + row};
    }
    uint32_t v_dim;
    std::vector<float> out, max, sum;
  };
  void RunItem(const KernelTable& table, const AttentionArgs& args, const AttentionItem& item,
               const AttentionItem* next, const AttentionPart& part) const {
    const uint32_t rows = (item.token_end - item.token_begin) * (config_.heads / config_.kv_heads);
    const float after = part.out[size_t{rows} * config_.v_dim];
    std::vector<float> scores(kAttentionRows * kScoresStride + 1, NAN);
    std::vector<float> tile_out(size_t{kAttentionRows} * config_.v_dim + 1, -7.0f);
    std::vector<float> q(size_t{rows} * config_.qk_dim + 1, -7.0f);
    scores.back() = -7.0f;
    table.attention(args, item, {scores.data(), tile_out.data(), q.data(), part, next});
    EXPECT_EQ(part.out[size_t{rows} * config_.v_dim], after) << "written past the item";
    EXPECT_EQ(scores.back(), -7.0f) << "written past the scores";
    EXPECT_EQ(tile_out.back(), -7.0f) << "written past the tile";
    EXPECT_EQ(q.back(), -7.0f) << "written past q";
  }
  void CopyOut(const AttentionArgs& args, const AttentionItem& item,
               const std::vector<float>& result, float* out) const {
    const size_t cols = size_t{config_.heads / config_.kv_heads} * config_.v_dim;
    for (uint32_t t = item.token_begin; t < item.token_end; ++t) {
      const size_t token = args.cu_q_lens[item.seq] + t;
      std::copy_n(result.begin() + static_cast<ptrdiff_t>((t - item.token_begin) * cols), cols,
                  out + token * config_.heads * config_.v_dim + item.kv_head * cols);
    }
  }

  size_t Head(uint32_t seq, uint32_t key, uint32_t head) const {
    const size_t page = pages_[size_t{seq} * pages_per_seq_ + key / config_.page_size];
    return page * config_.kv_heads + head;
  }

  const Config config_;
  const std::vector<Seq> seqs_;
  uint32_t num_pieces_ = 4, max_part_rows_ = 0;
  std::vector<uint32_t> cu_q_lens_, kv_lens_, pages_;
  uint32_t pages_per_seq_ = 1;
  KvHeads k_, v_;
  std::vector<float> q_;
};

}  // namespace flotilla::cpu::testing
