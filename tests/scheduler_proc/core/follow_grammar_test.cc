// Requests with a grammar in the scheduler: which rows get a mask, and how such a request ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler_proc/core/scheduler.h"
#include "tests/fakes/script_grammar.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ScriptGrammar;

constexpr int32_t kEos = 0;
constexpr uint32_t kVocabulary = 97;

SchedulerConfig Config() {
  SchedulerConfig config;
  config.num_pages = 64;
  config.page_size = 4;
  config.max_running_requests = 4;
  config.chunked_prefill_size = 8;
  config.context_length = 128;
  config.vocab_size = kVocabulary;
  config.eos_ids = {kEos};
  return config;
}

ReqSpec Spec(ReqId id, std::shared_ptr<const Grammar> grammar) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids = {5, 6, 7};
  spec.max_new_tokens = 10;
  spec.grammar = std::move(grammar);
  return spec;
}

std::vector<int32_t> TokensOf(std::span<const uint32_t> mask) {
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < static_cast<int32_t>(kVocabulary); ++token) {
    if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) tokens.push_back(token);
  }
  return tokens;
}

// A worker that takes the first token that a row's mask allows, and kFree where there is none.
class FollowGrammarTest : public ::testing::Test {
 protected:
  static constexpr int32_t kFree = 33;

  void SetUp() override { scheduler_.BeginEpoch(1, 64); }

  // False: nothing to do.
  bool Step() {
    if (!scheduler_.PlanStep(now_ns_, &plan_)) return false;
    Answer(plan_);
    return true;
  }
  void Answer(const StepPlan& plan) {
    StepResult result;
    result.step_id = plan.step_id;
    result.epoch = plan.epoch;
    std::span<const uint32_t> masks = plan.masks;
    masks_.clear();
    for (const PlanRow& row : plan.rows) {
      RowResult& answer = result.rows.emplace_back();
      answer.slot = row.slot;
      if ((row.flags & kRowSample) == 0) continue;
      answer.token = kFree;
      if ((row.flags & kRowMask) == 0) continue;
      masks_.push_back(TokensOf(masks.first(MaskWords(kVocabulary))));
      masks = masks.subspan(MaskWords(kVocabulary));
      answer.token = forced_ >= 0 ? forced_ : masks_.back().front();
    }
    EXPECT_TRUE(masks.empty());
    scheduler_.OnResult(result, now_ns_, &outputs_);
  }
  std::vector<int32_t> TokensOfRequest(ReqId id) const {
    std::vector<int32_t> tokens;
    for (const ReqOutput& output : outputs_) {
      if (output.id == id && output.token.has_value()) tokens.push_back(*output.token);
    }
    return tokens;
  }

  Scheduler scheduler_{Config()};
  const int64_t now_ns_ = 1000;
  StepPlan plan_;
  std::vector<std::vector<int32_t>> masks_;  // of the last answered plan
  std::vector<ReqOutput> outputs_;
  int32_t forced_ = -1;  // what the worker samples whatever the mask says
};

TEST_F(FollowGrammarTest, EachSampledRowHasItsMask) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50}, kEos);
  ReqSpec spec = Spec(1, grammar);
  spec.prompt_ids.assign(12, 5);  // two chunks, of which the second samples
  ASSERT_TRUE(scheduler_.Add(std::move(spec), now_ns_).ok());
  ASSERT_TRUE(Step());
  EXPECT_TRUE(plan_.masks.empty());
  ASSERT_TRUE(Step());
  EXPECT_THAT(masks_, ElementsAre(ElementsAre(40, 41)));
  ASSERT_TRUE(scheduler_.Add(Spec(2, nullptr), now_ns_).ok());
  ASSERT_TRUE(Step());
  EXPECT_EQ(plan_.rows.size(), 2u);
  EXPECT_THAT(masks_, ElementsAre(ElementsAre(50, 51)));
  ASSERT_TRUE(Step());
  EXPECT_THAT(masks_, ElementsAre(ElementsAre(kEos)));
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(40, 50, kEos));
}

TEST_F(FollowGrammarTest, EndsWithTheGrammarWhateverElseIsAsked) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40}, kEos);
  ReqSpec spec = Spec(1, grammar);
  spec.ignore_eos = true;
  spec.min_new_tokens = 5;
  ASSERT_TRUE(scheduler_.Add(std::move(spec), now_ns_).ok());
  while (Step()) {
  }
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(40, kEos));
  EXPECT_EQ(outputs_.back().finish, Finish::kStop);
  EXPECT_EQ(outputs_.back().stop_token, kEos);
  EXPECT_EQ(outputs_.back().completion_tokens, 2u);
}

TEST_F(FollowGrammarTest, MaxTokensAndStopTokensEndItBefore) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50, 60}, kEos);
  ReqSpec length = Spec(1, grammar), stop = Spec(2, grammar);
  length.max_new_tokens = 2;
  stop.stop_token_ids = {50};
  ASSERT_TRUE(scheduler_.Add(std::move(length), now_ns_).ok());
  ASSERT_TRUE(scheduler_.Add(std::move(stop), now_ns_).ok());
  while (Step()) {
  }
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(40, 50));
  EXPECT_THAT(TokensOfRequest(2), ElementsAre(40, 50));
  std::vector<Finish> ends;
  for (const ReqOutput& output : outputs_) {
    if (output.finish != Finish::kNone) ends.push_back(output.finish);
  }
  EXPECT_THAT(ends, ::testing::UnorderedElementsAre(Finish::kLength, Finish::kStop));
}

TEST_F(FollowGrammarTest, ResumedTokensCount) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50, 60}, kEos);
  ReqSpec spec = Spec(1, grammar);
  spec.resumed_ids = {41, 50};
  ASSERT_TRUE(scheduler_.Add(std::move(spec), now_ns_).ok());
  while (Step()) {
  }
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(60, kEos));
  ReqSpec foreign = Spec(2, grammar);
  foreign.resumed_ids = {40, 7};
  const Status status = scheduler_.Add(std::move(foreign), now_ns_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("resumed_ids[1]: "));
}

TEST_F(FollowGrammarTest, GoesOnAfterALostEpoch) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50, 60}, kEos);
  ASSERT_TRUE(scheduler_.Add(Spec(1, grammar), now_ns_).ok());
  ASSERT_TRUE(Step());
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &plan_));  // never answered
  scheduler_.BeginEpoch(2, 64);
  ASSERT_TRUE(Step());
  EXPECT_THAT(masks_, ElementsAre(ElementsAre(50, 51)));
  while (Step()) {
  }
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(40, 50, 60, kEos));
}

// The next mask depends on the token that is being sampled.
TEST_F(FollowGrammarTest, WaitsForItsTokenWhileOthersAreAStepAhead) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50}, kEos);
  ASSERT_TRUE(scheduler_.Add(Spec(1, grammar), now_ns_).ok());
  ASSERT_TRUE(scheduler_.Add(Spec(2, nullptr), now_ns_).ok());
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &plan_));
  ASSERT_EQ(plan_.rows.size(), 2u);
  StepPlan ahead;
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &ahead));
  ASSERT_EQ(ahead.rows.size(), 1u);
  EXPECT_TRUE(ahead.masks.empty());
  Answer(plan_);
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &plan_));
  EXPECT_THAT(TokensOf(plan_.masks), ElementsAre(50, 51));
  EXPECT_THAT(TokensOfRequest(1), ElementsAre(40));
}

// Two that came one after the other would take turns for ever.
TEST_F(FollowGrammarTest, ABatchOfMasksAloneWaitsForTheOthers) {
  const auto grammar =
      std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50, 60, 70, 80}, kEos);
  ASSERT_TRUE(scheduler_.Add(Spec(1, grammar), now_ns_).ok());
  StepPlan first, second;
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &first));
  ASSERT_TRUE(scheduler_.Add(Spec(2, grammar), now_ns_).ok());
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &second));
  Answer(first);
  EXPECT_FALSE(scheduler_.PlanStep(now_ns_, &plan_)) << "the second request is in flight";
  Answer(second);
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &plan_));
  EXPECT_EQ(plan_.rows.size(), 2u);
  // Who has no grammar goes on meanwhile, and takes the others along.
  Answer(plan_);
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &first));
  ASSERT_EQ(first.rows.size(), 2u);
  ASSERT_TRUE(scheduler_.Add(Spec(3, nullptr), now_ns_).ok());
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &second));
  ASSERT_EQ(second.rows.size(), 1u);
  Answer(first);
  ASSERT_TRUE(scheduler_.PlanStep(now_ns_, &plan_));
  EXPECT_EQ(plan_.rows.size(), 3u);
}

TEST_F(FollowGrammarTest, AGrammarThatFailsEndsItsRequestAlone) {
  const auto fails = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50}, kEos);
  fails->FailAt(1);
  ASSERT_TRUE(scheduler_.Add(Spec(1, fails), now_ns_).ok());
  ASSERT_TRUE(scheduler_.Add(Spec(2, nullptr), now_ns_).ok());
  ASSERT_TRUE(Step());
  ASSERT_EQ(outputs_.size(), 2u);
  EXPECT_EQ(outputs_[0].finish, Finish::kError);
  EXPECT_EQ(outputs_[0].error, "structured: no such luck");
  EXPECT_EQ(outputs_[0].error_code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(outputs_[1].finish, Finish::kNone);
  EXPECT_TRUE(scheduler_.CheckLedger().ok());
}

TEST_F(FollowGrammarTest, ATokenOutsideTheMaskEndsTheRequest) {
  const auto grammar = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40, 50}, kEos);
  ASSERT_TRUE(scheduler_.Add(Spec(1, grammar), now_ns_).ok());
  forced_ = 77;
  ASSERT_TRUE(Step());
  EXPECT_EQ(outputs_.back().finish, Finish::kError);
  EXPECT_EQ(outputs_.back().error, "structured: not in the script");
}

TEST_F(FollowGrammarTest, AGrammarThatCannotBeginIsRefused) {
  const auto empty = std::make_shared<ScriptGrammar>(std::vector<int32_t>{}, kEos);
  EXPECT_EQ(scheduler_.Add(Spec(1, empty), now_ns_).code(), absl::StatusCode::kInvalidArgument);
  const auto fails = std::make_shared<ScriptGrammar>(std::vector<int32_t>{40}, kEos);
  fails->FailAt(0);
  EXPECT_EQ(scheduler_.Add(Spec(2, fails), now_ns_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(scheduler_.HasWork());
}

}  // namespace
}  // namespace flotilla
