#include "worker_proc/runner/prepare_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/check.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kPageSize = 4;

PlanRow Row(uint32_t slot, uint32_t start, uint32_t tokens, uint32_t pages, uint32_t flags = 0) {
  return {slot, start, tokens, pages, flags, -1};
}

ForwardBatch Prepare(const StepPlan& plan, SlotTable* slots) {
  CHECK_OK(slots->Apply(plan));
  ForwardBatch batch;
  PrepareBatch(plan, *slots, &batch);
  slots->Close(plan);
  return batch;
}

std::vector<uint32_t> PagesOf(const ForwardBatch& batch, uint32_t seq, uint32_t n) {
  const auto begin = batch.page_indices.begin() + seq * batch.pages_per_seq;
  return {begin, begin + n};
}

// Requirement 004: A has 5 tokens; B has 3, the first 2 of them in the prefix cache.
TEST(PrepareBatchTest, TheDocumentsPrefillExample) {
  SlotTable slots(4, kPageSize, 64);
  StepPlan plan;
  plan.opens = {{0, 0, {}}, {1, 0, {}}};
  plan.rows = {Row(0, 0, 5, 2, kRowSample), Row(1, 2, 1, 1, kRowSample)};
  plan.input_ids = {10, 11, 12, 13, 14, 22};
  plan.new_pages = {7, 3, 9};
  const ForwardBatch batch = Prepare(plan, &slots);
  EXPECT_EQ(batch.mode, ForwardMode::kMixed);
  EXPECT_THAT(batch.input_ids, ElementsAre(10, 11, 12, 13, 14, 22));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4, 2));
  EXPECT_THAT(batch.cu_q_lens, ElementsAre(0, 5, 6));
  EXPECT_THAT(batch.kv_lens, ElementsAre(5, 3));  // the document's cu_seqlens_k [0, 5, 8]
  EXPECT_THAT(batch.out_cache_loc, ElementsAre(28, 29, 30, 31, 12, 38));
  EXPECT_THAT(PagesOf(batch, 0, 2), ElementsAre(7, 3));
  EXPECT_THAT(PagesOf(batch, 1, 1), ElementsAre(9));
  ASSERT_EQ(batch.logits_rows.size(), 2u);
  EXPECT_EQ(batch.logits_rows[0].token_index, 4u);
  EXPECT_EQ(batch.logits_rows[1].token_index, 5u);
  EXPECT_EQ(batch.logits_rows[1].position, 2u);
}

// Requirement 004: A has 100 tokens, the newest 42; B has 50, the newest 88.
TEST(PrepareBatchTest, TheDocumentsDecodeExample) {
  SlotTable slots(2, kPageSize, 128);
  StepPlan prefill;
  prefill.opens = {{0, 0, {}}, {1, 0, {}}};
  prefill.rows = {Row(0, 0, 99, 25), Row(1, 0, 49, 13)};
  prefill.input_ids.assign(148, 1);
  for (uint32_t page = 0; page < 38; ++page) prefill.new_pages.push_back(page);
  EXPECT_EQ(Prepare(prefill, &slots).mode, ForwardMode::kExtend);
  StepPlan decode;
  decode.rows = {Row(0, 99, 1, 0, kRowSample), Row(1, 49, 1, 0, kRowSample)};
  decode.input_ids = {42, 88};
  const ForwardBatch batch = Prepare(decode, &slots);
  EXPECT_EQ(batch.mode, ForwardMode::kDecode);
  EXPECT_THAT(batch.input_ids, ElementsAre(42, 88));
  EXPECT_THAT(batch.positions, ElementsAre(99, 49));
  EXPECT_THAT(batch.kv_lens, ElementsAre(100, 50));
  EXPECT_THAT(batch.cu_q_lens, ElementsAre(0, 1, 2));
  EXPECT_THAT(batch.out_cache_loc, ElementsAre(24 * 4 + 3, (25 + 12) * 4 + 1));
}

// Requirement 003: queries of 2, 9 and 5 tokens; the first two sequences share the first 2 tokens
// of queries, tokens 2 … 10 read the second sequence's pages.
TEST(PrepareBatchTest, TheRaggedExample) {
  SlotTable slots(3, kPageSize, 2048);
  StepPlan plan;
  plan.opens = {{0, 0, {}}, {1, 0, {}}, {2, 0, {}}};
  plan.rows = {Row(0, 14, 2, 4), Row(1, 0, 9, 3), Row(2, 1019, 5, 256)};
  plan.input_ids.assign(16, 5);
  for (uint32_t page = 0; page < 4 + 3 + 256; ++page) plan.new_pages.push_back(page);
  const ForwardBatch batch = Prepare(plan, &slots);
  EXPECT_EQ(batch.num_seqs, 3u);
  EXPECT_THAT(batch.cu_q_lens, ElementsAre(0, 2, 11, 16));
  EXPECT_THAT(batch.kv_lens, ElementsAre(16, 9, 1024));
  EXPECT_THAT(PagesOf(batch, 1, 3), ElementsAre(4, 5, 6));
  EXPECT_EQ(batch.mode, ForwardMode::kExtend);
}

TEST(PrepareBatchTest, ADraftIsComputedLikeAPromptAndCountedAsADecode) {
  SlotTable slots(2, kPageSize, 64);
  StepPlan plan;
  plan.opens = {{0, 0, {}}, {1, 0, {}}};
  plan.rows = {Row(0, 8, 1, 3, kRowSample), Row(1, 4, 3, 2, kRowSample | kRowVerify)};
  plan.input_ids.assign(4, 5);
  plan.new_pages = {0, 1, 2, 3, 4};
  const ForwardBatch batch = Prepare(plan, &slots);
  EXPECT_EQ(batch.mode, ForwardMode::kMixed);
  EXPECT_EQ(StepMode(plan), ForwardMode::kDecode);
  ASSERT_EQ(batch.logits_rows.size(), 4u);
  EXPECT_EQ(batch.logits_rows[3].position, 6u);
  EXPECT_TRUE(batch.logits_rows[1].sample);
}

TEST(PrepareBatchTest, PromptLogprobsWantEveryPositionAndKnowTheTokenAfterIt) {
  SlotTable slots(1, kPageSize, 64);
  StepPlan plan;
  plan.opens = {{0, 0, {}}};
  plan.rows = {Row(0, 0, 3, 1, kRowPromptLogprobs)};
  plan.rows[0].next_token = 99;
  plan.input_ids = {5, 6, 7};
  plan.new_pages = {0};
  const auto rows = Prepare(plan, &slots).logits_rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].target, 6);
  EXPECT_EQ(rows[1].target, 7);
  EXPECT_EQ(rows[2].target, 99);
  EXPECT_FALSE(rows[2].sample);
  // The prompt's end: the last position is sampled too, once.
  StepPlan last;
  last.rows = {Row(0, 3, 1, 0, kRowPromptLogprobs | kRowSample)};
  last.input_ids = {99};
  const auto end = Prepare(last, &slots).logits_rows;
  ASSERT_EQ(end.size(), 1u);
  EXPECT_TRUE(end[0].sample && end[0].prompt_logprobs);
  EXPECT_EQ(end[0].target, -1);
}

}  // namespace
}  // namespace flotilla
