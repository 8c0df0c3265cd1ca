// Ragged paged attention: against a naive fp64 one, bit for bit between instruction sets, and
// independent of batching, chunking and what lies in the padding; on a cache of fp32 and of bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/cpu/attention_items.h"

namespace flotilla::cpu {
namespace {

using testing::AllTables;
using testing::RandomFloats;

struct Config {
  uint32_t heads, kv_heads, qk_dim, v_dim, page_size;
  KvType type = KvType::kFloat32;
  uint32_t window = 0;
  float softcap = 0;
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
    k_ = RandomFloats(size_t{num_pages} * config.kv_heads * geometry().k_head_size(), 1);
    v_ = RandomFloats(size_t{num_pages} * config.kv_heads * geometry().v_head_size(), 2);
    if (config.type == KvType::kBFloat16) {  // what the cache can hold, so that fp64 sees the same
      for (std::vector<float>* values : {&k_, &v_}) {
        for (float& value : *values) value = FromBFloat16(ToBFloat16(value));
      }
    }
    q_ = RandomFloats(size_t{cu_q_lens_.back()} * config.heads * config.qk_dim, 3);
  }

  KvGeometry geometry() const {
    return {config_.page_size, config_.kv_heads, config_.qk_dim, config_.v_dim, config_.type};
  }
  float* K(uint32_t seq, uint32_t key, uint32_t head, uint32_t d) {
    return &k_[(Head(seq, key, head) * config_.qk_dim + d) * config_.page_size +
               key % config_.page_size];
  }
  float* V(uint32_t seq, uint32_t key, uint32_t head, uint32_t d) {
    return &v_[(Head(seq, key, head) * config_.page_size + key % config_.page_size) *
                   config_.v_dim +
               d];
  }

  void set_num_pieces(uint32_t pieces) { num_pieces_ = pieces; }

  // Everything a query must not see becomes NaN.
  void PoisonPadding() {
    for (uint32_t s = 0; s < seqs_.size(); ++s) {
      const uint32_t first = FirstKey(kv_lens_[s] - seqs_[s].q_len, config_.window);
      for (uint32_t key = 0; key < pages_per_seq_ * config_.page_size; ++key) {
        if (key >= first && key < kv_lens_[s]) continue;
        for (uint32_t h = 0; h < config_.kv_heads; ++h) {
          for (uint32_t d = 0; d < config_.qk_dim; ++d) *K(s, key, h, d) = NAN;
          for (uint32_t d = 0; d < config_.v_dim; ++d) *V(s, key, h, d) = NAN;
        }
      }
    }
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
              p[key] += static_cast<double>(q[d]) * *K(s, key, h / group, d);
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
              value += p[key] * *V(s, key, h / group, d);
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
    const std::vector<uint16_t> k_halves = Halves(k_), v_halves = Halves(v_);
    const bool fp32 = config_.type == KvType::kFloat32;
    args.k_pages = fp32 ? static_cast<const void*>(k_.data()) : k_halves.data();
    args.v_pages = fp32 ? static_cast<const void*>(v_.data()) : v_halves.data();
    args.cu_q_lens = cu_q_lens.data();
    args.kv_lens = kv_lens;
    args.page_indices = page_indices;
    args.pages_per_seq = pages_per_seq_;
    std::vector<AttentionItem> items;
    const auto num_seqs = static_cast<uint32_t>(cu_q_lens.size() - 1);
    const uint32_t group = config_.heads / config_.kv_heads;
    MakeAttentionItems(
        {num_seqs, cu_q_lens.data(), kv_lens, config_.kv_heads, group, num_pieces_, config_.window},
        &items);
    std::vector<float> out(size_t{cu_q_lens.back()} * config_.heads * config_.v_dim, NAN);
    for (const AttentionItem& item : items) RunItem(table, args, item, out.data());
    return out;
  }
  std::vector<uint16_t> Halves(const std::vector<float>& values) const {
    std::vector<uint16_t> halves;
    if (config_.type == KvType::kFloat32) return halves;
    for (const float value : values) halves.push_back(ToBFloat16(value));
    return halves;
  }
  void RunItem(const KernelTable& table, const AttentionArgs& args, const AttentionItem& item,
               float* out) {
    const size_t cols = size_t{config_.heads / config_.kv_heads} * config_.v_dim;
    const size_t stride = size_t{pages_per_seq_} * config_.page_size + 64;
    std::vector<float> scores(kAttentionRows * stride, NAN);
    std::vector<float> result((item.token_end - item.token_begin) * cols + 1, -7.0f);
    table.attention(args, item, {scores.data(), stride, result.data()});
    EXPECT_EQ(result.back(), -7.0f) << "written past the item";
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
  uint32_t num_pieces_ = 4;
  std::vector<uint32_t> cu_q_lens_, kv_lens_, pages_;
  uint32_t pages_per_seq_ = 1;
  std::vector<float> k_, v_, q_;
};

const Config kConfigs[] = {
    {9, 3, 64, 64, 16},  // SmolLM2, TP 1
    {6, 2, 64, 64, 16},  // its ranks
    {3, 1, 64, 64, 32}, {4, 1, 256, 256, 16}, {4, 4, 16, 16, 1},
    {2, 1, 20, 12, 5},  {8, 1, 24, 40, 24},   {7, 1, 64, 33, 64},
};
// Windows of one key, of fewer than a tile has rows, of parts of pages and of more than there is.
std::vector<Config> WindowConfigs() {
  std::vector<Config> configs;
  for (Config config : kConfigs) {
    for (const uint32_t window : {1u, 3u, 16u, 37u, 1000u}) {
      config.window = window;
      config.softcap = window == 37 ? 0.7f : 0;
      config.type = window % 2 == 0 ? KvType::kFloat32 : KvType::kBFloat16;
      configs.push_back(config);
    }
  }
  return configs;
}
// Each with both types of cache.
std::vector<Config> AllConfigs() {
  std::vector<Config> configs;
  for (Config config : kConfigs) {
    for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
      config.type = type;
      configs.push_back(config);
    }
  }
  return configs;
}
// The document's lengths 2, 9, 5 with kv 16, 9, 1024; decodes; prefills; one key.
const std::vector<Seq> kMixes[] = {{{2, 16}, {9, 9}, {5, 300}},
                                   {{1, 1}},
                                   {{1, 100}, {1, 17}, {1, 16}, {1, 15}, {1, 1}},
                                   {{70, 70}},
                                   {{33, 97}, {1, 64}, {3, 3}, {2, 130}}};

TEST(AttentionTest, MatchesNaiveDoubleAndAllTablesGiveTheSameBits) {
  for (const Config& config : AllConfigs()) {
    for (const std::vector<Seq>& seqs : kMixes) {
      Problem problem(config, seqs);
      problem.PoisonPadding();
      const auto expected = problem.Run(ReferenceKernels());
      EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
      for (const KernelTable* table : AllTables()) {
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected))
            << table->name << " heads " << config.heads << " page " << config.page_size << " type "
            << static_cast<uint32_t>(config.type);
      }
    }
  }
}

// What lies before the window is never read.
TEST(AttentionTest, AWindowHidesEarlierKeysAndASoftCapBendsScores) {
  for (const Config& config : WindowConfigs()) {
    for (const std::vector<Seq>& seqs : kMixes) {
      Problem problem(config, seqs);
      problem.PoisonPadding();
      const auto expected = problem.Run(ReferenceKernels());
      EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
      for (const KernelTable* table : AllTables()) {
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected))
            << table->name << " heads " << config.heads << " page " << config.page_size
            << " window " << config.window;
      }
    }
  }
}

TEST(AttentionTest, AWindowOfAllKeysIsNone) {
  Config config = kConfigs[0];
  const std::vector<Seq> seqs = {{33, 97}, {1, 64}};
  const auto without = Problem(config, seqs).Run(ReferenceKernels());
  for (const uint32_t window : {97u, 96u}) {
    config.window = window;
    for (const KernelTable* table : AllTables()) {
      EXPECT_EQ(testing::SameBits(Problem(config, seqs).Run(*table), without), window == 97);
    }
  }
}

TEST(AttentionTest, AWindowedQueryDoesNotDependOnTheChunkItIsIn) {
  for (const uint32_t window : {2u, 13u, 16u}) {
    Config config = kConfigs[0];
    config.window = window;
    Problem problem(config, {{50, 50}});
    for (const KernelTable* table : AllTables()) {
      const auto whole = problem.Run(*table);
      for (const uint32_t chunk : {1u, 7u}) {
        std::vector<float> joined;
        for (uint32_t begin = 0; begin < 50; begin += chunk) {
          const auto part = problem.RunChunk(*table, begin, std::min(50u, begin + chunk));
          joined.insert(joined.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(testing::SameBits(joined, whole)) << table->name << " window " << window;
      }
    }
  }
}

TEST(AttentionTest, HowTheWorkIsCutDoesNotMatter) {
  for (const Config& config : AllConfigs()) {
    Problem problem(config, {{33, 97}, {1, 64}, {3, 3}});
    problem.set_num_pieces(1);
    const auto expected = problem.Run(ReferenceKernels());
    for (const KernelTable* table : AllTables()) {
      for (const uint32_t pieces : {1u, 7u, 1000u}) {
        problem.set_num_pieces(pieces);
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected)) << table->name;
      }
    }
  }
}

TEST(AttentionTest, ASequenceDoesNotDependOnItsNeighbours) {
  const std::vector<Seq> seqs = {{2, 16}, {9, 9}, {1, 77}, {40, 100}};
  Problem problem(kConfigs[0], seqs);
  for (const KernelTable* table : AllTables()) {
    const auto together = problem.Run(*table);
    size_t at = 0;
    for (uint32_t s = 0; s < seqs.size(); ++s) {
      const auto alone = problem.Run(*table, s, 1);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + at, alone.size() * sizeof(float)), 0);
      at += alone.size();
    }
  }
}

TEST(AttentionTest, AQueryDoesNotDependOnTheChunkItIsIn) {
  Problem problem(kConfigs[0], {{50, 50}});
  for (const KernelTable* table : AllTables()) {
    const auto whole = problem.Run(*table);
    for (const uint32_t chunk : {1u, 7u, 16u}) {
      std::vector<float> joined;
      for (uint32_t begin = 0; begin < 50; begin += chunk) {
        const auto part = problem.RunChunk(*table, begin, std::min(50u, begin + chunk));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(testing::SameBits(joined, whole)) << table->name << " chunk " << chunk;
    }
  }
}

template <typename Kv>
void ExpectWritten(KvType type, float (*as_float)(Kv)) {
  const KvGeometry kv{4, 2, 3, 5, type};
  const auto k = RandomFloats(3 * 2 * 8, 1);
  std::vector<Kv> k_pages(3 * 2 * kv.k_head_size(), 0), v_pages(3 * 2 * kv.v_head_size(), 0);
  const int64_t slots[] = {2 * 4 + 3, -1, 4};
  // A token's row: k heads (2 x 3), then v heads (2 x 5).
  ReferenceKernels().write_kv(
      {kv, k.data(), k.data() + 6, 16, slots, 3, k_pages.data(), v_pages.data()});
  const auto kept = [&](float x) {
    return type == KvType::kFloat32 ? x : FromBFloat16(ToBFloat16(x));
  };
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t d = 0; d < 3; ++d) {
      EXPECT_EQ(as_float(k_pages[((2 * 2 + h) * 3 + d) * 4 + 3]), kept(k[h * 3 + d]));
      EXPECT_EQ(as_float(k_pages[((1 * 2 + h) * 3 + d) * 4 + 0]), kept(k[2 * 16 + h * 3 + d]));
    }
    for (uint32_t d = 0; d < 5; ++d) {
      EXPECT_EQ(as_float(v_pages[((2 * 2 + h) * 4 + 3) * 5 + d]), kept(k[6 + h * 5 + d]));
    }
  }
  const auto written = [](const std::vector<Kv>& pages) {
    return std::count_if(pages.begin(), pages.end(), [](Kv x) { return x != 0; });
  };
  EXPECT_EQ(written(k_pages), 2 * 2 * 3);
  EXPECT_EQ(written(v_pages), 2 * 2 * 5);
}

TEST(WriteKvTest, PutsEachTokenWhereAttentionReadsItAndSkipsMinusOne) {
  ExpectWritten<float>(KvType::kFloat32, [](float x) { return x; });
  ExpectWritten<uint16_t>(KvType::kBFloat16, FromBFloat16);
}

TEST(BFloat16Test, RoundsToNearestEvenAndKeepsWhatIsSpecial) {
  EXPECT_EQ(FromBFloat16(0x3f80), 1.0f);
  EXPECT_EQ(ToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f), 0x3f80);             // a tie, to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x3p-8f), 0x3f82);             // a tie, to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // past the tie
  EXPECT_EQ(ToBFloat16(-0.0f), 0x8000);
  EXPECT_EQ(ToBFloat16(3.4e38f), 0x7f80);  // beyond the largest: infinity
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(std::nanf("")))));
  uint32_t bits = 0x7f800001;  // a NaN whose upper half is an infinity's
  float nan;
  std::memcpy(&nan, &bits, sizeof(nan));
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(nan))));
}

}  // namespace
}  // namespace flotilla::cpu
