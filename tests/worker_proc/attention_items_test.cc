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
  std::vector<AttentionItem> Items(uint32_t kv_heads, uint32_t group, uint32_t pieces) const {
    std::vector<AttentionItem> items;
    MakeAttentionItems({static_cast<uint32_t>(kv_lens.size()), cu_q_lens.data(), kv_lens.data(),
                        kv_heads, group, pieces},
                       &items);
    return items;
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
  std::vector<AttentionItem> items;
  MakeAttentionItems({1, batch.cu_q_lens.data(), batch.kv_lens.data(), 1, 1, 40, 32}, &items);
  const auto tokens = [](const AttentionItem& item) { return item.token_end - item.token_begin; };
  ASSERT_GE(items.size(), 20u);
  for (size_t i = 0; i + 1 < items.size(); ++i) EXPECT_EQ(tokens(items[i]), tokens(items[0]));
  EXPECT_LE(tokens(items.back()), tokens(items[0]));
}

TEST(AttentionItemsTest, AStepsLayersOfAKindShareTheirItems) {
  Batch batch;
  batch.Add(100, 400);
  AttentionWork work = {1, batch.cu_q_lens.data(), batch.kv_lens.data(), 1, 4, 8};
  StepAttentionItems step;
  step.BeginStep();
  const std::vector<AttentionItem>* const global = &step.For(work);
  work.window = 32;
  const std::vector<AttentionItem>* const sliding = &step.For(work);
  EXPECT_NE(global, sliding);
  EXPECT_EQ(&step.For(work), sliding);
  work.window = 0;
  EXPECT_EQ(&step.For(work), global);
  EXPECT_EQ(global->back().seq, 0u);
  step.BeginStep();
  batch.kv_lens[0] = 100;
  uint32_t tokens = 0;
  for (const AttentionItem& item : step.For(work)) tokens += item.token_end - item.token_begin;
  EXPECT_EQ(tokens, 100u);
}

TEST(AttentionItemsTest, AnEmptyStepHasNone) { EXPECT_TRUE(Batch().Items(3, 3, 16).empty()); }

}  // namespace
}  // namespace flotilla::cpu
