#include "worker_proc/cpu/attention_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace flotilla::cpu {
namespace {

struct Batch {
  std::vector<uint32_t> cu_q_lens = {0};
  std::vector<uint32_t> kv_lens;
  void Add(uint32_t q_len, uint32_t kv_len) {
    cu_q_lens.push_back(cu_q_lens.back() + q_len);
    kv_lens.push_back(kv_len);
  }
  uint64_t Keys(const AttentionItem& item) const {
    const uint32_t q_len = cu_q_lens[item.seq + 1] - cu_q_lens[item.seq];
    uint64_t keys = 0;
    for (uint32_t t = item.token_begin; t < item.token_end; ++t) {
      keys += kv_lens[item.seq] - q_len + t + 1;
    }
    return keys;
  }
  AttentionWork Work(uint32_t kv_heads, uint32_t group, uint32_t pieces) const {
    return {static_cast<uint32_t>(kv_lens.size()),
            cu_q_lens.data(),
            kv_lens.data(),
            kv_heads,
            group,
            pieces};
  }
  std::vector<AttentionItem> Items(uint32_t kv_heads, uint32_t group, uint32_t pieces) const {
    AttentionItems items;
    MakeAttentionItems(Work(kv_heads, group, pieces), &items);
    EXPECT_TRUE(items.merges.empty());
    return items.items;
  }
};

TEST(AttentionItemsTest, CoverEveryTokenAndHeadOnceWithinTheLimit) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    Batch batch;
    for (uint32_t s = 0; s < 1 + rng() % 6; ++s) {
      const uint32_t q_len = 1 + rng() % 3 * (rng() % 100);
      batch.Add(q_len, q_len + rng() % 200);
    }
    const uint32_t kv_heads = 1 + rng() % 4;
    const uint32_t group = 1 + rng() % 9;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> seen;  // (token, head) → times
    for (const AttentionItem& item : batch.Items(kv_heads, group, 1 + rng() % 40)) {
      ASSERT_LT(item.token_begin, item.token_end);
      ASSERT_LE(item.token_end - item.token_begin, MaxItemTokens(group));
      for (uint32_t t = item.token_begin; t < item.token_end; ++t) {
        ++seen[{batch.cu_q_lens[item.seq] + t, item.kv_head}];
      }
    }
    ASSERT_EQ(seen.size(), size_t{batch.cu_q_lens.back()} * kv_heads);
    for (const auto& [where, times] : seen) ASSERT_EQ(times, 1u);
  }
}

TEST(AttentionItemsTest, ComeCostliestFirst) {
  Batch batch;
  batch.Add(1, 10);
  batch.Add(100, 400);
  batch.Add(1, 1000);
  batch.Add(7, 7);
  const auto items = batch.Items(3, 3, 16);
  for (size_t i = 1; i < items.size(); ++i) {
    EXPECT_GE(batch.Keys(items[i - 1]), batch.Keys(items[i]));
  }
}

// Taken in order by whoever is free, the work of a prefill is even over two and four threads.
TEST(AttentionItemsTest, TheLoadOfThreadsIsEven) {
  Batch batch;
  batch.Add(512, 512);
  batch.Add(1, 200);
  for (const uint32_t threads : {2u, 4u}) {
    std::vector<uint64_t> load(threads, 0);
    for (const AttentionItem& item : batch.Items(3, 3, threads * 8)) {
      *std::min_element(load.begin(), load.end()) += batch.Keys(item);
    }
    const auto [least, most] = std::minmax_element(load.begin(), load.end());
    EXPECT_LT(static_cast<double>(*most), 1.05 * static_cast<double>(*least));
  }
}

// A window makes late tokens cost as much as early ones: the cut is then even in tokens.
TEST(AttentionItemsTest, AWindowBoundsWhatATokenCosts) {
  Batch batch;
  batch.Add(480, 4000);
  AttentionWork work = batch.Work(1, 1, 40);
  work.window = 32;
  AttentionItems cut;
  MakeAttentionItems(work, &cut);
  const std::vector<AttentionItem>& items = cut.items;
  const auto tokens = [](const AttentionItem& item) { return item.token_end - item.token_begin; };
  ASSERT_GE(items.size(), 20u);
  for (size_t i = 0; i + 1 < items.size(); ++i) EXPECT_EQ(tokens(items[i]), tokens(items[0]));
  EXPECT_LE(tokens(items.back()), tokens(items[0]));
}

TEST(AttentionItemsTest, AStepsLayersOfAKindShareTheirItems) {
  Batch batch;
  batch.Add(100, 400);
  AttentionWork work = batch.Work(1, 4, 8);
  StepAttentionItems step;
  step.BeginStep();
  const AttentionItems* const global = &step.For(work);
  work.window = 32;
  const AttentionItems* const sliding = &step.For(work);
  EXPECT_NE(global, sliding);
  EXPECT_EQ(&step.For(work), sliding);
  work.window = 0;
  EXPECT_EQ(&step.For(work), global);
  EXPECT_EQ(global->items.back().seq, 0u);
  step.BeginStep();
  batch.kv_lens[0] = 100;
  uint32_t tokens = 0;
  for (const AttentionItem& item : step.For(work).items) {
    tokens += item.token_end - item.token_begin;
  }
  EXPECT_EQ(tokens, 100u);
}

// One sequence of one token: its keys are shared, and every split has its place.
TEST(AttentionItemsTest, TheKeysOfALongSequenceAreCutAtFixedPlaces) {
  Batch batch;
  batch.Add(1, 5000);
  batch.Add(1, 900);
  AttentionWork work = batch.Work(3, 3, 16);
  work.max_part_rows = 100;
  AttentionItems cut;
  MakeAttentionItems(work, &cut);
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> part_of;  // (head, split) → its first row
  std::vector<bool> taken(100, false);
  for (const AttentionItem& item : cut.items) {
    EXPECT_EQ(item.split == kAllSplits, item.seq == 1);
    if (item.split == kAllSplits) continue;
    EXPECT_TRUE(part_of.emplace(std::pair(item.kv_head, item.split), item.part_row).second);
    for (uint32_t row = item.part_row; row < item.part_row + 3; ++row) {
      ASSERT_FALSE(taken.at(row));
      taken[row] = true;
    }
  }
  EXPECT_EQ(part_of.size(), 3 * 5u);
  ASSERT_EQ(cut.merges.size(), 3u);
  for (const AttentionItems::Merge& merge : cut.merges) {
    ASSERT_EQ(merge.num_parts, 5u);
    for (uint32_t split = 0; split < 5; ++split) {
      EXPECT_EQ(part_of.at({merge.item.kv_head, split}), merge.item.part_row + 3 * split);
    }
  }
  // 904 keys come behind 1,024 and before 900.
  EXPECT_EQ(cut.items.back().seq, 1u);
  EXPECT_EQ(cut.items[cut.items.size() - 4].split, 4u);
}

TEST(AttentionItemsTest, KeysAreNotCutWithoutNeedOrMemory) {
  Batch batch;
  batch.Add(1, 5000);
  AttentionItems cut;
  const auto merges = [&](uint32_t pieces, uint32_t max_part_rows, uint32_t window) {
    AttentionWork work = batch.Work(2, 4, pieces);
    work.max_part_rows = max_part_rows;
    work.window = window;
    MakeAttentionItems(work, &cut);
    return cut.merges.size();
  };
  EXPECT_EQ(merges(16, 40, 0), 2u);  // 5 splits of 4 rows of 2 heads
  EXPECT_EQ(merges(16, 39, 0), 0u);
  EXPECT_EQ(merges(16, 0, 0), 0u);
  EXPECT_EQ(merges(2, 40, 0), 0u);      // two heads are two pieces
  EXPECT_EQ(merges(16, 40, 900), 0u);   // of one split
  EXPECT_EQ(merges(16, 40, 1000), 2u);  // of two: from the key 4,000 on
  for (const AttentionItem& item : cut.items) EXPECT_GE(item.split, 3u);
  for (int i = 0; i < 15; ++i) batch.Add(1, 5000);
  EXPECT_EQ(merges(16, 4000, 0), 0u);  // enough sequences
}

TEST(AttentionItemsTest, AnEmptyStepHasNone) { EXPECT_TRUE(Batch().Items(3, 3, 16).empty()); }

}  // namespace
}  // namespace flotilla::cpu
