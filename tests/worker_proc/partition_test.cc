#include "worker_proc/model/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

ModelConfig SmolLm2() {
  ModelConfig config;
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  return config;
}

std::vector<uint32_t> Sizes(const std::vector<RowRange>& ranges) {
  std::vector<uint32_t> sizes;
  for (const RowRange& range : ranges) sizes.push_back(range.size());
  return sizes;
}

void ExpectCovers(const std::vector<RowRange>& ranges, uint32_t rows) {
  uint32_t at = 0;
  for (const RowRange& range : ranges) {
    EXPECT_EQ(range.begin, at);
    EXPECT_LE(range.begin, range.end);
    at = range.end;
  }
  EXPECT_EQ(at, rows);
}

TEST(PartitionTest, WholeKvGroupsOfNineAndThreeHeads) {
  const auto heads = [](uint32_t tp) { return Sizes(MakeTpPartition(SmolLm2(), 0, tp)->heads); };
  const auto kv = [](uint32_t tp) { return Sizes(MakeTpPartition(SmolLm2(), 0, tp)->kv_heads); };
  EXPECT_THAT(heads(1), ElementsAre(9));
  EXPECT_THAT(heads(2), ElementsAre(6, 3));
  EXPECT_THAT(heads(3), ElementsAre(3, 3, 3));
  EXPECT_THAT(kv(2), ElementsAre(2, 1));
  EXPECT_THAT(kv(3), ElementsAre(1, 1, 1));
}

TEST(PartitionTest, RowsAreSplitInPanelsAndCoverEverything) {
  for (const auto& [hidden, intermediate, vocab] :
       {std::tuple{576u, 1536u, 49152u}, {96u, 160u, 290u}, {40u, 24u, 5u}}) {
    ModelConfig config = SmolLm2();
    config.hidden_size = hidden;
    config.intermediate_size = intermediate;
    config.vocab_size = vocab;
    for (uint32_t tp = 1; tp <= 5; ++tp) {
      const auto partition = MakeTpPartition(config, tp - 1, tp);
      ASSERT_TRUE(partition.ok());
      ExpectCovers(partition->heads, 9);
      ExpectCovers(partition->hidden, hidden);
      ExpectCovers(partition->intermediate, intermediate);
      ExpectCovers(partition->vocab, vocab);
      for (const auto* ranges : {&partition->hidden, &partition->intermediate, &partition->vocab}) {
        const uint32_t unit = ranges == &partition->intermediate ? 32 : 16;
        for (const RowRange& range : *ranges) {
          EXPECT_TRUE(range.begin % unit == 0 || range.begin == range.end);
        }
        // Ranks meet after each of these, so none may be more than a unit behind.
        const auto sizes = Sizes(*ranges);
        EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()) -
                      *std::min_element(sizes.begin(), sizes.end()),
                  2 * unit - 1);
      }
    }
  }
}

// The heads of every rank as {first kv head, kv heads, first query head, query heads}.
std::vector<std::vector<uint32_t>> HeadTable(uint32_t heads, uint32_t kv_heads, uint32_t tp) {
  ModelConfig config = SmolLm2();
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  std::vector<std::vector<uint32_t>> table;
  for (uint32_t rank = 0; rank < tp; ++rank) {
    const auto partition = MakeTpPartition(config, rank, tp);
    if (!partition.ok()) return {};
    const RowRange kv = partition->my(partition->kv_heads);
    const RowRange q = partition->my(partition->heads);
    table.push_back({kv.begin, kv.size(), q.begin, q.size()});
  }
  return table;
}

TEST(PartitionTest, RanksShareKvHeadsWhereThereAreFewer) {
  using Table = std::vector<std::vector<uint32_t>>;
  // Gemma 3 270M.
  EXPECT_EQ(HeadTable(4, 1, 1), (Table{{0, 1, 0, 4}}));
  EXPECT_EQ(HeadTable(4, 1, 2), (Table{{0, 1, 0, 2}, {0, 1, 2, 2}}));
  EXPECT_EQ(HeadTable(4, 1, 3), (Table{{0, 1, 0, 2}, {0, 1, 2, 1}, {0, 1, 3, 1}}));
  EXPECT_EQ(HeadTable(4, 1, 4), (Table{{0, 1, 0, 1}, {0, 1, 1, 1}, {0, 1, 2, 1}, {0, 1, 3, 1}}));
  EXPECT_EQ(HeadTable(8, 2, 3), (Table{{0, 1, 0, 2}, {0, 1, 2, 2}, {1, 1, 4, 4}}));
  EXPECT_EQ(HeadTable(9, 3, 4), (Table{{0, 1, 0, 2}, {0, 1, 2, 1}, {1, 1, 3, 3}, {2, 1, 6, 3}}));
}

// Of all models up to 12 heads: what ranks compute and cache is what their query heads need.
TEST(PartitionTest, EveryRankHasTheKvHeadsOfItsQueryHeads) {
  for (uint32_t kv_heads = 1; kv_heads <= 12; ++kv_heads) {
    for (uint32_t heads = kv_heads; heads <= 12; heads += kv_heads) {
      const uint32_t group = heads / kv_heads;
      for (uint32_t tp = 1; tp <= heads; ++tp) {
        SCOPED_TRACE(StrCat(heads, " heads, ", kv_heads, " kv heads, tp ", tp));
        const auto table = HeadTable(heads, kv_heads, tp);
        ASSERT_EQ(table.size(), tp);
        uint32_t next = 0;
        for (const std::vector<uint32_t>& rank : table) {
          const uint32_t kv_begin = rank[0], kv_size = rank[1], begin = rank[2], size = rank[3];
          EXPECT_EQ(begin, next);
          ASSERT_GT(size, 0u);
          EXPECT_EQ(begin / group, kv_begin);
          EXPECT_EQ((begin + size - 1) / group, kv_begin + kv_size - 1);
          // The kernels take as many query heads for each kv head.
          EXPECT_EQ(size % kv_size, 0u);
          EXPECT_TRUE(kv_size == 1 || size == kv_size * group);
          next = begin + size;
        }
        EXPECT_EQ(next, heads);
      }
    }
  }
}

TEST(PartitionTest, RefusesMoreRanksThanQueryHeadsAndSaysWhatWorks) {
  EXPECT_TRUE(MakeTpPartition(SmolLm2(), 8, 9).ok());
  const auto partition = MakeTpPartition(SmolLm2(), 0, 10);
  ASSERT_EQ(partition.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(partition.status().message(),
            "--tp 10 is more than the model's 9 query heads; use --tp 9 or less");
  EXPECT_FALSE(MakeTpPartition(SmolLm2(), 2, 2).ok());
  EXPECT_FALSE(MakeTpPartition(SmolLm2(), 0, 0).ok());
  ModelConfig odd = SmolLm2();
  odd.num_attention_heads = 10;
  EXPECT_FALSE(MakeTpPartition(odd, 0, 1).ok());
}

TEST(SplitWorkTest, EvensOutWhatRanksHaveAlready) {
  EXPECT_THAT(SplitWork(36, {0, 0}), ElementsAre(18, 18));
  EXPECT_THAT(SplitWork(10, {0, 0, 0}), ElementsAre(4, 3, 3));
  EXPECT_THAT(SplitWork(10, {6, 0}), ElementsAre(2, 8));
  EXPECT_THAT(SplitWork(3, {100, 0}), ElementsAre(0, 3));
  EXPECT_THAT(SplitWork(0, {1, 2}), ElementsAre(0, 0));
}

// No other assignment has a smaller largest total: checked by trying all.
TEST(SplitWorkTest, LargestTotalIsAsSmallAsPossible) {
  for (uint32_t units = 0; units < 12; ++units) {
    for (const std::vector<double>& fixed :
         {std::vector<double>{0.5, 3, 1}, {7, 0, 0}, {2, 2.5, 2}}) {
      const auto largest = [&](uint32_t a, uint32_t b, uint32_t c) {
        return std::max({fixed[0] + a, fixed[1] + b, fixed[2] + c});
      };
      double best = 1e9;
      for (uint32_t a = 0; a <= units; ++a) {
        for (uint32_t b = 0; a + b <= units; ++b) {
          best = std::min(best, largest(a, b, units - a - b));
        }
      }
      const auto split = SplitWork(units, fixed);
      EXPECT_EQ(split[0] + split[1] + split[2], units);
      EXPECT_EQ(largest(split[0], split[1], split[2]), best);
    }
  }
}

}  // namespace
}  // namespace flotilla
