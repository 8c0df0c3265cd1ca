// The benchmark's own batches are what the worker makes of the same plan.
#include "worker_proc/bench/bench_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "worker_proc/runner/prepare_batch.h"
#include "worker_proc/runner/slot_table.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kVocab = 1000;
const SequenceSize kMixed[] = {{1, 192}, {128, 128}, {16, 33}, {1, 1}, {100, 1024}};

TEST(BenchBatchesTest, APlanFitsTheWorkersChecks) {
  std::string frame;
  BuildStepPlan(MakePlan(kMixed, kVocab), &frame);
  StepPlan parsed;
  const StepPlanLimits limits{5, TokensOf(kMixed), PagesOf(kMixed), kVocab, 1024};
  EXPECT_TRUE(ParseStepPlan(frame, limits, &parsed).ok());
  EXPECT_EQ(TokensOf(kMixed), 246u);
  EXPECT_EQ(PagesOf(kMixed), 12u + 8 + 3 + 1 + 64);
}

TEST(BenchBatchesTest, ABatchIsWhatTheWorkerMakesOfThePlan) {
  SlotTable slots(5, kPageSize, 1024);
  const StepPlan plan = MakePlan(kMixed, kVocab);
  ForwardBatch expected;
  for (int again = 0; again < 2; ++again) {  // every step opens and closes its slots
    CHECK_OK(slots.Apply(plan));
    PrepareBatch(plan, slots, &expected);
    slots.Close(plan);
    EXPECT_EQ(slots.num_open(), 0u);
  }
  const ForwardBatch batch = MakeBatch(kMixed);
  EXPECT_EQ(batch.num_tokens, expected.num_tokens);
  EXPECT_EQ(batch.num_seqs, expected.num_seqs);
  EXPECT_EQ(batch.positions, expected.positions);
  EXPECT_EQ(batch.out_cache_loc, expected.out_cache_loc);
  EXPECT_EQ(batch.cu_q_lens, expected.cu_q_lens);
  EXPECT_EQ(batch.kv_lens, expected.kv_lens);
  for (uint32_t s = 0; s < batch.num_seqs; ++s) {
    for (uint32_t p = 0; p * kPageSize < batch.kv_lens[s]; ++p) {
      EXPECT_EQ(batch.page_indices[s * batch.pages_per_seq + p],
                expected.page_indices[s * expected.pages_per_seq + p]);
    }
  }
  EXPECT_EQ(expected.logits_rows.size(), std::size(kMixed));
}

TEST(BenchBatchesTest, NoPageIsUsedTwice) {
  std::vector<uint32_t> pages = MakePlan(kMixed, kVocab).new_pages;
  std::sort(pages.begin(), pages.end());
  std::vector<uint32_t> all(PagesOf(kMixed));
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_EQ(pages, all);
}

TEST(BenchBatchesTest, FillingWritesConsecutiveTokensWithinTheContext) {
  const ForwardBatch batch = MakeFillBatch(60, 10, 64);
  EXPECT_EQ(batch.positions, (std::vector<uint32_t>{60, 61, 62, 63, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.out_cache_loc.front(), 60);
  EXPECT_EQ(batch.out_cache_loc.back(), 69);
}

}  // namespace
}  // namespace flotilla::bench
