// Ragged paged attention, emulated: against a naive fp64 one, and the same bits however the work is
// shared, batched, chunked and ordered. SmolLM2's, Gemma 3's, Qwen3's and odd heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/worker_proc/cuda/attention_case.h"

namespace flotilla::cuda {
namespace {

using cpu::testing::SameBits;
using testing::AttentionCase;
using testing::AttentionConfig;
using testing::kElements;
using testing::RelativeError;
using testing::Seq;

const AttentionConfig kConfigs[] = {
    {9, 3, 64, 64, 16},                           // SmolLM2
    {6, 2, 64, 64, 7},     {4, 1, 256, 256, 16},  // Gemma 3 270M
    {16, 8, 128, 128, 32},                        // Qwen3-0.6B
    {4, 4, 16, 16, 1},     {2, 1, 20, 12, 5},    {8, 1, 24, 40, 24},
    {18, 1, 64, 33, 64},   {8, 8, 17, 9, 3},
};
// The document's lengths 2, 9, 5 with kv 16, 9, 1024; decodes; prefills; one key; splits.
const std::vector<Seq> kMixes[] = {{{2, 16}, {9, 9}, {5, 300}},
                                   {{1, 1}},
                                   {{1, 100}, {1, 17}, {1, 16}, {1, 15}, {1, 1}},
                                   {{20, 20}, {3, 97}, {1, 64}},
                                   {{1, 600}, {1, 256}, {1, 257}, {2, 513}}};
constexpr AttentionCase::Sharing kSerial = {1, 0};
constexpr AttentionCase::Sharing kShared = {1000, 4096};

std::vector<AttentionConfig> Configs() {
  std::vector<AttentionConfig> configs;
  for (AttentionConfig config : kConfigs) {
    for (const uint32_t window : {0u, 1u, 20u, 300u}) {
      config.window = window;
      config.softcap = window == 20 ? 0.7f : 0;
      config.kv_type = kElements[configs.size() % 3];
      configs.push_back(config);
    }
  }
  return configs;
}

TEST(CudaAttentionTest, MatchesDoubleAndSharingChangesNoBit) {
  size_t shares = 0;
  for (const AttentionConfig& config : Configs()) {
    for (const std::vector<Seq>& seqs : kMixes) {
      AttentionCase c(config, seqs);
      c.Poison();
      emulation::SetSeed(1);
      const auto expected = c.Run(kSerial);
      // The tensor cores take the keys' weights rounded.
      const double tolerance = c.by_mma() ? testing::Tolerance(config.kv_type) : 3e-6;
      EXPECT_LT(RelativeError(expected, c.Naive()), tolerance)
          << "heads " << config.heads << " dim " << config.qk_dim << " window " << config.window;
      emulation::SetSeed(2);
      EXPECT_TRUE(SameBits(c.Run(kShared), expected))
          << "heads " << config.heads << " dim " << config.qk_dim << " window " << config.window;
      shares += c.num_shares();
      EXPECT_TRUE(SameBits(c.Run({1000, 50}), expected)) << "room for few parts";
      const uint32_t few = c.by_mma() ? kNarrowItemRows : 3;
      EXPECT_TRUE(SameBits(c.Run({20, 4096, few}), expected)) << "items of few rows";
    }
  }
  EXPECT_GT(shares, 100u) << "nothing was shared";
}

TEST(CudaAttentionTest, OutputOfAnyType) {
  for (const Element type : kElements) {
    AttentionCase c(kConfigs[0], kMixes[4]);
    EXPECT_LT(RelativeError(c.Run(kShared, type), c.Naive()), testing::Tolerance(type));
    EXPECT_LT(RelativeError(c.Run(kSerial, type), c.Naive()), testing::Tolerance(type));
  }
}

// Prompts' rows are wide items, decodes narrow ones: the same bits, so the last of a prompt's
// tokens may be computed either way.
TEST(CudaAttentionTest, TensorCoresGiveADecodeThePromptsBits) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (const uint32_t window : {0u, 50u}) {
      AttentionConfig config = {6, 2, dim, dim, 16};
      config.window = window;
      config.kv_type = dim == 64 ? Element::kFloat16 : Element::kBFloat16;
      AttentionCase c(config, {{300, 300}});
      ASSERT_TRUE(c.by_mma());
      const auto whole = c.Run(kSerial);
      for (const uint32_t token : {0u, 31u, 255u, 256u, 299u}) {
        const auto alone = c.RunChunk(token, token + 1);
        EXPECT_TRUE(SameBits(alone, std::vector<float>(whole.begin() + token * alone.size(),
                                                       whole.begin() + (token + 1) * alone.size())))
            << dim << " window " << window << " token " << token;
      }
    }
  }
}

TEST(CudaAttentionTest, ASequenceDoesNotDependOnItsNeighbours) {
  AttentionConfig config = kConfigs[0];
  config.kv_type = Element::kBFloat16;
  const std::vector<Seq> seqs = {{2, 16}, {9, 9}, {1, 577}, {10, 100}};
  AttentionCase c(config, seqs);
  const auto together = c.Run(kShared);
  size_t at = 0;
  for (uint32_t s = 0; s < seqs.size(); ++s) {
    const auto alone = c.Run(kShared, s, 1);
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + at, alone.size() * sizeof(float)), 0)
        << s;
    at += alone.size();
  }
}

TEST(CudaAttentionTest, AQueryDoesNotDependOnTheChunkItIsIn) {
  for (const uint32_t window : {0u, 13u}) {
    AttentionConfig config = kConfigs[0];
    config.window = window;
    AttentionCase c(config, {{270, 270}});
    const auto whole = c.Run(kSerial);
    for (const uint32_t chunk : {7u, 64u}) {
      std::vector<float> joined;
      for (uint32_t begin = 0; begin < 270; begin += chunk) {
        const auto part = c.RunChunk(begin, std::min(270u, begin + chunk));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(SameBits(joined, whole)) << window << " " << chunk;
    }
  }
}

TEST(AttentionPlanTest, RowsAreCoveredOnceAndPartsFit) {
  const std::vector<uint32_t> cu = {0, 1, 40, 41};
  const std::vector<uint32_t> kv = {1000, 300, 256};
  for (const uint32_t parallel_blocks : {20u, 1000u}) {
    for (const uint32_t window : {0u, 100u}) {
      for (const uint32_t max_part_rows : {0u, 30u, 10000u}) {
        AttentionPlan plan;
        MakeAttentionPlan({.num_seqs = 3,
                           .cu_q_lens = cu.data(),
                           .kv_lens = kv.data(),
                           .pages_per_seq = 1,  // where a table begins says whose it is
                           .num_kv_heads = 2,
                           .group = 3,
                           .window = window,
                           .parallel_blocks = parallel_blocks,
                           .max_part_rows = max_part_rows},
                          &plan);
        std::vector<std::vector<uint32_t>> splits_of_row(3 * 41);
        std::vector<bool> part_used(max_part_rows);
        std::vector<uint32_t> items(plan.num_shares), parts(plan.num_shares);
        for (const AttentionItem& item : plan.items) {
          const uint32_t rows = item.row_end - item.row_begin;
          const bool shares = item.part_row != kNoPart;
          ASSERT_LE(rows, kItemRows);
          ASSERT_GT(item.split_end, item.split_begin);
          if (shares) {
            ASSERT_LT(item.share, plan.num_shares);
            EXPECT_EQ(item.part_row, item.share_part_row + parts[item.share] * rows);
            ++items[item.share];
            parts[item.share] += item.split_end - item.split_begin;
            if (items[item.share] == item.share_items) {
              EXPECT_EQ(parts[item.share], item.share_parts);
            }
          }
          for (uint32_t split = item.split_begin; split < item.split_end; ++split) {
            for (uint32_t row = item.row_begin; row < item.row_end; ++row) {
              splits_of_row[cu[item.first_page] * 3 + row].push_back(split);
              if (!shares) continue;
              const uint32_t part =
                  item.part_row + (split - item.split_begin) * rows + (row - item.row_begin);
              ASSERT_LT(part, max_part_rows);
              EXPECT_FALSE(part_used[part]) << "two rows in one part";
              part_used[part] = true;
            }
          }
        }
        for (uint32_t s = 0; s < 3; ++s) {
          for (uint32_t row = 0; row < (cu[s + 1] - cu[s]) * 3; ++row) {
            const uint32_t end = kv[s] - (cu[s + 1] - cu[s]) + row / 3 + 1;
            const uint32_t first = window == 0 || end <= window ? 0 : end - window;
            const auto& splits = splits_of_row[cu[s] * 3 + row];
            ASSERT_FALSE(splits.empty());
            EXPECT_LE(splits.front(), first / kSplitKeys);
            EXPECT_GE((splits.back() + 1) * kSplitKeys, end);
            for (size_t i = 1; i < splits.size(); ++i) EXPECT_EQ(splits[i], splits[i - 1] + 1);
          }
        }
        if (max_part_rows == 0) {
          EXPECT_EQ(plan.num_shares, 0u);
        } else if (parallel_blocks == 1000) {
          EXPECT_GT(plan.num_shares, 0u);
        }
      }
    }
  }
}

TEST(AttentionPlanTest, LongSequencesComeFirst) {
  const std::vector<uint32_t> cu = {0, 1, 2, 3, 4};
  const std::vector<uint32_t> kv = {100, 2000, 700, 2010};
  AttentionPlan plan;
  MakeAttentionPlan({.num_seqs = 4, .cu_q_lens = cu.data(), .kv_lens = kv.data()}, &plan);
  ASSERT_EQ(plan.items.size(), 4u);
  const uint32_t expected[] = {1, 3, 2, 0};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.items[i].first_token, expected[i]) << i;
}

TEST(AttentionPlanTest, LaunchesOfFixedSizeShareAsManyKeysAsFit) {
  const std::vector<uint32_t> cu = {0, 1, 2, 2};
  const std::vector<uint32_t> kv = {500, 300, 0};  // the third is padding
  AttentionPlanInput input = {.num_seqs = 3,
                              .cu_q_lens = cu.data(),
                              .kv_lens = kv.data(),
                              .pages_per_seq = 1,
                              .num_kv_heads = 2,
                              .group = 3,
                              .max_part_rows = 10000};
  for (const uint32_t parallel_blocks : {5u, 100u}) {
    input.parallel_blocks = parallel_blocks;
    const uint32_t fixed = FixedItems(3, 3, input);
    for (const uint32_t num_items : {fixed, 4u, 2u}) {
      input.num_items = num_items;
      AttentionPlan plan;
      MakeAttentionPlan(input, &plan);
      EXPECT_EQ(plan.items.size(), num_items);
      std::vector<uint32_t> splits(3);
      for (const AttentionItem& item : plan.items) {
        if (item.row_end > item.row_begin) {
          splits[item.first_page] += item.split_end - item.split_begin;
        }
      }
      EXPECT_EQ(splits, (std::vector<uint32_t>{4, 3, 0}));
      // Four splits need three items besides, the second sequence's three need two.
      EXPECT_EQ(plan.num_shares, num_items == 2 ? 0u : num_items == 4 ? 1u : 2u) << parallel_blocks;
    }
  }
}

// Whatever a step of that size has, its tiles find room; and one of decodes only has no item to
// spare where there are more than enough.
TEST(AttentionPlanTest, AFixedLaunchHasRoomForEveryStepOfItsSize) {
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t seqs = 1 + rng() % 20;
    const uint32_t tokens = seqs + rng() % 40;
    AttentionPlanInput input = {.group = 1 + static_cast<uint32_t>(rng() % 20),
                                .parallel_blocks = 1 + static_cast<uint32_t>(rng() % 64),
                                .max_part_rows = 10000,
                                .item_rows = kNarrowItemRows};
    input.num_items = FixedItems(tokens, seqs, input);
    std::vector<uint32_t> cu = {0};
    std::vector<uint32_t> kv;
    for (uint32_t left = tokens; left > 0 && kv.size() < seqs;) {
      const uint32_t q_len = rng() % 2 == 0 ? 1 : 1 + static_cast<uint32_t>(rng() % left);
      cu.push_back(cu.back() + q_len);
      kv.push_back(q_len + static_cast<uint32_t>(rng() % 2000));
      left -= q_len;
    }
    input.num_seqs = static_cast<uint32_t>(kv.size());
    input.cu_q_lens = cu.data();
    input.kv_lens = kv.data();
    input.pages_per_seq = 200;
    AttentionPlan plan;
    MakeAttentionPlan(input, &plan);  // ends the process where there is none
    uint32_t rows = 0;
    for (const AttentionItem& item : plan.items) {
      if (item.share_items <= 1 || item.split_begin * kSplitKeys == 0) {
        rows += item.row_end - item.row_begin;
      }
    }
    EXPECT_EQ(rows, cu.back() * input.group);
  }
  AttentionPlanInput qwen = {.num_kv_heads = 8,
                             .group = 2,
                             .parallel_blocks = 396,
                             .max_part_rows = 10000,
                             .item_rows = kNarrowItemRows};
  EXPECT_EQ(FixedItems(256, 256, qwen), 256u);
  EXPECT_EQ(FixedItems(8, 8, qwen), 8u + 50u);
  // Where no key is ever shared, no step has more items than the largest.
  qwen.max_part_rows = 0;
  for (uint32_t seqs = 1; seqs <= 256; ++seqs) EXPECT_EQ(FixedItems(seqs, seqs, qwen), seqs);
}

}  // namespace
}  // namespace flotilla::cuda
