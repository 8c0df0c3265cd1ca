#include "worker_proc/runner/slot_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kPageSize = 4;

PlanRow Row(uint32_t slot, uint32_t start, uint32_t tokens, uint32_t pages, uint32_t flags = 0) {
  return {slot, start, tokens, pages, flags, -1};
}

TEST(SlotTableTest, OpeningAnOpenSlotStartsAfresh) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan first;
  first.opens = {{0, 0, {}}};
  first.rows = {Row(0, 0, 8, 2)};
  first.input_ids.assign(8, 1);
  first.new_pages = {3, 4};
  ASSERT_TRUE(slots.Apply(first).ok());
  // Another request gets the slot before its close was sent; it begins behind a prefix hit.
  StepPlan second;
  second.opens = {{0, 0, {}}};
  second.opens[0].sampling.seed = 9;
  second.rows = {Row(0, 12, 2, 4)};
  second.input_ids.assign(2, 1);
  second.new_pages = {5, 6, 7, 8};
  ASSERT_TRUE(slots.Apply(second).ok());
  EXPECT_THAT(slots.slot(0).pages, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(slots.slot(0).sampling.seed, 9u);
  EXPECT_EQ(slots.num_open(), 1u);
}

TEST(SlotTableTest, ADraftOverlapsWhatFollows) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan plan;
  plan.opens = {{0, 0, {}}};
  plan.rows = {Row(0, 0, 4, 2)};
  plan.input_ids.assign(4, 1);
  plan.new_pages = {3, 4};
  ASSERT_TRUE(slots.Apply(plan).ok());
  plan.opens.clear();
  plan.new_pages.clear();
  plan.rows = {Row(0, 4, 4, 0, kRowSample | kRowVerify)};
  ASSERT_TRUE(slots.Apply(plan).ok());
  plan.rows = {Row(0, 5, 1, 0, kRowSample)};  // the first of its draft was wrong
  plan.input_ids = {7};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(slots.slot(0).num_tokens, 6u);
}

TEST(SlotTableTest, APooledSlotLeavesNoPositionOut) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan plan;
  plan.opens = {{0, 0, {}}};
  plan.rows = {Row(0, 4, 2, 2, kRowPoolMean)};
  plan.input_ids.assign(2, 1);
  plan.new_pages = {3, 4};
  EXPECT_EQ(slots.Apply(plan).code(), absl::StatusCode::kInvalidArgument);  // behind a prefix hit
  plan.rows[0].start_pos = 0;
  ASSERT_TRUE(slots.Apply(plan).ok());
  slots.pooled_sum(0)->assign(4, 1.0f);
  plan.opens.clear();
  plan.new_pages.clear();
  plan.rows = {Row(0, 0, 2, 0, kRowPoolMean)};
  EXPECT_EQ(slots.Apply(plan).code(), absl::StatusCode::kInvalidArgument);  // twice
  plan.rows = {Row(0, 2, 2, 0, kRowPoolMean)};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(slots.slot(0).pooled_sum.size(), 4u);
  plan.opens = {{0, 0, {}}};
  plan.rows = {Row(0, 0, 2, 1, kRowPoolMean)};
  plan.new_pages = {5};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_TRUE(slots.slot(0).pooled_sum.empty()) << "opened afresh";
}

TEST(SlotTableTest, RefusesPlansThatDoNotFitAndStaysAsItWas) {
  SlotTable slots(2, kPageSize, 16);
  const auto code = [&](const StepPlan& plan) { return slots.Apply(plan).code(); };
  StepPlan open;
  open.opens = {{0, 0, {}}};
  open.rows = {Row(0, 0, 4, 1)};
  open.input_ids.assign(4, 1);
  open.new_pages = {3};
  ASSERT_TRUE(slots.Apply(open).ok());
  StepPlan row;
  row.rows = {Row(1, 0, 1, 1)};
  row.new_pages = {4};
  EXPECT_EQ(code(row), absl::StatusCode::kInvalidArgument);  // not open
  row.rows = {Row(0, 4, 1, 0)};
  row.new_pages = {};
  EXPECT_EQ(code(row), absl::StatusCode::kInvalidArgument);  // no page for the fifth token
  row.rows = {Row(0, 6, 1, 1)};
  row.new_pages = {4};
  EXPECT_EQ(code(row), absl::StatusCode::kInvalidArgument);  // gap
  row.rows = {Row(0, 4, 1, 4)};
  row.new_pages = {4, 5, 6, 7};
  EXPECT_EQ(code(row), absl::StatusCode::kInvalidArgument);  // more pages than the context has
  StepPlan close;
  close.closes = {1};
  EXPECT_EQ(code(close), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(slots.slot(0).pages, ElementsAre(3));
  EXPECT_EQ(slots.num_open(), 1u);
  row.rows = {Row(0, 4, 1, 1)};
  row.new_pages = {4};
  EXPECT_TRUE(slots.Apply(row).ok());
  EXPECT_THAT(slots.slot(0).pages, ElementsAre(3, 4));
  close.closes = {0};
  ASSERT_TRUE(slots.Apply(close).ok());
  slots.Close(close);
  EXPECT_EQ(slots.num_open(), 0u);
}

using Counts = std::map<int32_t, std::pair<uint32_t, uint32_t>>;  // token → in prompt, in output

Counts CountsOf(const Slot& slot) {
  Counts counts;
  for (const TokenCount& c : slot.history.counts()) {
    if (c.in_prompt + c.in_output > 0) counts[c.token] = {c.in_prompt, c.in_output};
  }
  return counts;
}

PlanOpen Penalised(uint32_t slot, uint32_t output_start, uint32_t num_history) {
  PlanOpen open;
  open.slot = slot;
  open.output_start = output_start;
  open.sampling.presence_penalty = 1;
  open.num_history = num_history;
  return open;
}

// A prompt of 6 in two chunks, then two decodes.
TEST(SlotTableTest, ASlotWithPenaltiesCountsTheTokensItRuns) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan plan;
  plan.opens = {Penalised(1, 6, 0), {}};
  plan.opens[1].slot = 0;  // without penalties: nothing is counted
  plan.rows = {Row(0, 0, 1, 1), Row(1, 0, 4, 4)};
  plan.input_ids = {9, 5, 5, 7, 5};
  plan.new_pages = {0, 1, 2, 3, 4};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(CountsOf(slots.slot(1)), (Counts{{5, {3, 0}}, {7, {1, 0}}}));
  EXPECT_EQ(slots.slot(0).history.size(), 0u);
  const auto next = [&](uint32_t start, std::vector<int32_t> ids) {
    StepPlan step;
    step.rows = {Row(1, start, static_cast<uint32_t>(ids.size()), 0)};
    step.input_ids = std::move(ids);
    return slots.Apply(step);
  };
  ASSERT_TRUE(next(4, {8, 7}).ok());
  ASSERT_TRUE(next(6, {7}).ok());
  ASSERT_TRUE(next(7, {1}).ok());
  EXPECT_EQ(CountsOf(slots.slot(1)), (Counts{{1, {0, 1}}, {5, {3, 0}}, {7, {2, 1}}, {8, {1, 0}}}));
  // Positions that are run again count once.
  ASSERT_TRUE(next(5, {7, 7, 2}).ok());
  EXPECT_EQ(CountsOf(slots.slot(1)), (Counts{{2, {0, 1}}, {5, {3, 0}}, {7, {2, 1}}, {8, {1, 0}}}));
}

// While it is verified a draft counts; what was wrong of it does no more once that is known.
TEST(SlotTableTest, ADraftCountsUntilItsStepIsOver) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan plan;
  plan.opens = {Penalised(0, 4, 4)};
  plan.history = {1, 1, 2, 3};
  plan.rows = {Row(0, 4, 4, 2, kRowSample | kRowVerify)};
  plan.input_ids = {1, 5, 5, 6};
  plan.new_pages = {3, 4};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(CountsOf(slots.slot(0)),
            (Counts{{1, {2, 1}}, {2, {1, 0}}, {3, {1, 0}}, {5, {0, 2}}, {6, {0, 1}}}));
  StepPlan next;
  next.rows = {Row(0, 6, 1, 0, kRowSample)};  // its first was right
  next.input_ids = {8};
  ASSERT_TRUE(slots.Apply(next).ok());
  EXPECT_EQ(CountsOf(slots.slot(0)),
            (Counts{{1, {2, 1}}, {2, {1, 0}}, {3, {1, 0}}, {5, {0, 1}}, {8, {0, 1}}}));
}

// After a retraction: prompt of 3, output of 4, of which the first row leaves out a prefix hit.
TEST(SlotTableTest, HistoryAndRowsTogetherAreTheSequence) {
  SlotTable slots(1, kPageSize, 16);
  StepPlan plan;
  plan.opens = {Penalised(0, 3, 5)};
  plan.history = {1, 1, 2, 2, 3};
  plan.rows = {Row(0, 5, 2, 2)};
  plan.input_ids = {3, 1};
  plan.new_pages = {0, 1};
  ASSERT_TRUE(slots.Apply(plan).ok());
  const Counts expected = {{1, {2, 1}}, {2, {1, 1}}, {3, {0, 2}}};
  EXPECT_EQ(CountsOf(slots.slot(0)), expected);
  // The same without the hit, and with a history that is longer than it need be.
  plan.opens = {Penalised(0, 3, 0)};
  plan.history = {};
  plan.rows = {Row(0, 0, 7, 2)};
  plan.input_ids = {1, 1, 2, 2, 3, 3, 1};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(CountsOf(slots.slot(0)), expected);
  plan.opens = {Penalised(0, 3, 7)};
  plan.history = plan.input_ids;
  plan.rows = {Row(0, 4, 3, 2)};
  plan.input_ids = {3, 3, 1};
  ASSERT_TRUE(slots.Apply(plan).ok());
  EXPECT_EQ(CountsOf(slots.slot(0)), expected);
}

TEST(SlotTableTest, AGapInTheHistoryIsRefused) {
  SlotTable slots(1, kPageSize, 16);
  StepPlan plan;
  plan.opens = {Penalised(0, 3, 4)};
  plan.history = {1, 2, 3, 4};
  plan.rows = {Row(0, 5, 1, 2)};
  plan.input_ids = {1};
  plan.new_pages = {0, 1};
  const Status status = slots.Apply(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("history"), std::string::npos) << status;
  EXPECT_EQ(slots.num_open(), 0u);
  plan.opens[0].sampling = {};
  plan.opens[0].num_history = 0;
  plan.history = {};
  EXPECT_TRUE(slots.Apply(plan).ok()) << "nobody asks for it without penalties";
}

TEST(SlotTableTest, BiasesGoToTheirSlots) {
  SlotTable slots(3, kPageSize, 16);
  StepPlan plan;
  plan.opens.resize(3);
  for (uint32_t i = 0; i < 3; ++i) plan.opens[i].slot = 2 - i;
  plan.opens[0].num_logit_bias = 2;
  plan.opens[2].num_logit_bias = 1;
  plan.logit_bias = {{4, 1}, {6, -1}, {5, 100}};
  ASSERT_TRUE(slots.Apply(plan).ok());
  ASSERT_EQ(slots.slot(2).logit_bias.size(), 2u);
  EXPECT_EQ(slots.slot(2).logit_bias[1].token, 6);
  EXPECT_TRUE(slots.slot(1).logit_bias.empty());
  ASSERT_EQ(slots.slot(0).logit_bias.size(), 1u);
  EXPECT_EQ(slots.slot(0).logit_bias[0].bias, 100);
  // The next request in the slot has none of it.
  StepPlan again;
  again.opens.resize(1);
  again.opens[0].slot = 0;
  ASSERT_TRUE(slots.Apply(again).ok());
  EXPECT_TRUE(slots.slot(0).logit_bias.empty());
}

// With overlap a plan says "the last token" for what it can't know yet.
TEST(SlotTableTest, PutsInWhatTheSlotSampledLast) {
  SlotTable slots(2, kPageSize, 16);
  StepPlan first;
  first.opens = {{0, 0, {}}, {1, 0, {}}};
  first.opens[1].sampling.presence_penalty = 1;
  first.rows = {Row(0, 0, 3, 1), Row(1, 0, 2, 1)};
  first.input_ids = {1, 1, 1, 2, 2};
  first.new_pages = {3, 4};
  ASSERT_TRUE(slots.FillLastTokens(&first).ok());
  ASSERT_TRUE(slots.Apply(first).ok());
  StepPlan next;
  next.rows = {Row(1, 2, 1, 0), Row(0, 3, 1, 0)};
  next.input_ids = {kLastToken, kLastToken};
  EXPECT_TRUE(absl::IsInvalidArgument(slots.FillLastTokens(&next))) << "nothing was sampled";
  slots.SetLastToken(0, 70);
  slots.SetLastToken(1, 71);
  ASSERT_TRUE(slots.FillLastTokens(&next).ok());
  EXPECT_THAT(next.input_ids, ElementsAre(71, 70));
  ASSERT_TRUE(slots.Apply(next).ok());
  EXPECT_EQ(slots.slot(1).history.size(), 3u) << "penalties count it";
  // A step in flight: its token is put in by the device, unless a later step's is awaited, or the
  // slot has become another request's.
  StepPlan ahead;
  ahead.rows = {Row(0, 4, 1, 2), Row(1, 3, 1, 2)};
  ahead.input_ids = {kLastToken, kLastToken};
  ahead.new_pages = {7, 8, 9, 10};
  const std::vector<int32_t> unknown = ahead.input_ids;
  slots.AwaitToken(0, 5);
  ASSERT_TRUE(slots.FillLastTokens(&ahead).ok());
  EXPECT_THAT(ahead.input_ids, ElementsAre(TokenOfSlot(0), 71));
  slots.AwaitToken(0, 6);
  slots.SetAwaitedToken(0, 5, 80);
  ahead.input_ids = unknown;
  ASSERT_TRUE(slots.FillLastTokens(&ahead).ok());
  EXPECT_THAT(ahead.input_ids, ElementsAre(TokenOfSlot(0), 71)) << "the sixth step's is awaited";
  slots.SetAwaitedToken(0, 6, 81);
  ahead.input_ids = unknown;
  ASSERT_TRUE(slots.FillLastTokens(&ahead).ok());
  EXPECT_THAT(ahead.input_ids, ElementsAre(81, 71));
  slots.AwaitToken(1, 7);
  StepPlan taken_over;
  taken_over.opens = {{1, 0, {}}};
  taken_over.rows = {Row(1, 0, 1, 1)};
  taken_over.input_ids = {5};
  taken_over.new_pages = {11};
  ASSERT_TRUE(slots.Apply(taken_over).ok());
  slots.SetAwaitedToken(1, 7, 90);
  EXPECT_EQ(slots.slot(1).last_token, -1) << "another request's";
  // Bad logits: the device has no token either, so it is the same whether that is known here.
  slots.AwaitToken(0, 8);
  slots.SetAwaitedToken(0, 8, -1);
  ahead.rows.pop_back();
  ahead.input_ids = {kLastToken};
  ASSERT_TRUE(slots.FillLastTokens(&ahead).ok());
  EXPECT_THAT(ahead.input_ids, ElementsAre(TokenOfSlot(0)));
  slots.SetLastToken(0, -1);
  ahead.input_ids = {kLastToken};
  EXPECT_TRUE(absl::IsInvalidArgument(slots.FillLastTokens(&ahead))) << "nothing is awaited";
  StepPlan gap;
  gap.rows = {Row(0, 3, 1, 0)};
  gap.input_ids = {kLastToken};
  EXPECT_TRUE(absl::IsInvalidArgument(slots.FillLastTokens(&gap))) << "it stands at 4, not 3";
  StepPlan reopened;
  reopened.opens = {{0, 0, {}}};
  reopened.rows = {Row(0, 4, 1, 2)};
  reopened.input_ids = {kLastToken};
  reopened.new_pages = {5, 6};
  EXPECT_TRUE(absl::IsInvalidArgument(slots.FillLastTokens(&reopened))) << "another request's";
}

}  // namespace
}  // namespace flotilla
