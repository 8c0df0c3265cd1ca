#include "scheduler_proc/core/prefill_adder.h"

#include <gtest/gtest.h>

#include <deque>

namespace flotilla {
namespace {

constexpr uint32_t kPageSize = 4;

class PrefillAdderTest : public ::testing::Test {
 protected:
  PrefillAdderTest() {
    config_.page_size = kPageSize;
    config_.chunked_prefill_size = 64;
    batch_.new_token_ratio = 0.5;
    kv_.Reset(32);  // 128 tokens
  }

  // A prompt of `len` tokens, all `token`.
  Req* MakeReq(uint32_t len, uint32_t max_new_tokens, int32_t token = -1) {
    Req& req = reqs_.emplace_back();
    req.seq = reqs_.size();
    const int32_t id = token >= 0 ? token : static_cast<int32_t>(100 + reqs_.size());
    req.SetTokens(std::vector<int32_t>(len, id));
    req.prompt_len = req.prefill_len = len;
    req.max_total = len + max_new_tokens;
    kv_.Attach(&req);
    return &req;
  }
  Req* MakeRunning(uint32_t len, uint32_t max_new_tokens) {
    Req* req = MakeReq(len, max_new_tokens);
    kv_.TakePrefix(req);
    EXPECT_TRUE(kv_.Grow(req, len));
    req->num_computed = req->num_scheduled = len;
    req->state = ReqState::kRunning;
    running_.push_back(req);
    return req;
  }
  PrefillAdder Adder() {
    RunningSummary summary;
    for (const Req* req : running_) {
      summary.Add(*req, ReservedPages(config_, kv_, batch_.new_token_ratio, *req));
    }
    return PrefillAdder(config_, &kv_, summary, {}, budget_, &batch_);
  }

  SchedulerConfig config_;
  StepBudget budget_;
  KvPool kv_{kPageSize, /*enable_prefix_cache=*/true};
  std::deque<Req> reqs_;
  std::vector<Req*> running_;
  ScheduleBatch batch_;
};

TEST_F(PrefillAdderTest, CutsTheLastPromptAtAPageWithinTheChunkBudget) {
  config_.chunked_prefill_size = 30;
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(10, 1)), AddReqResult::kContinue);
  EXPECT_EQ(adder.AddOneReq(MakeReq(50, 1)), AddReqResult::kContinue);
  ASSERT_EQ(batch_.rows.size(), 2u);
  EXPECT_TRUE(batch_.rows[0].samples);
  EXPECT_EQ(batch_.rows[1].num_tokens, 20u);
  EXPECT_FALSE(batch_.rows[1].samples);
  EXPECT_EQ(adder.AddOneReq(MakeReq(2, 1)), AddReqResult::kOther);
  EXPECT_EQ(batch_.num_extend_tokens, 30u);
  EXPECT_EQ(batch_.forward_mode(), ForwardMode::kExtend);
}

TEST_F(PrefillAdderTest, ACutBelowAPageIsMadeOnlyIfNothingElseRuns) {
  config_.chunked_prefill_size = 3;
  {
    PrefillAdder adder = Adder();
    EXPECT_EQ(adder.AddOneReq(MakeReq(10, 1)), AddReqResult::kContinue);
    EXPECT_EQ(batch_.rows[0].num_tokens, 3u);
  }
  batch_.Clear();
  config_.chunked_prefill_size = 6;
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(4, 1)), AddReqResult::kContinue);
  Req* next = MakeReq(10, 1);
  EXPECT_EQ(adder.AddOneReq(next), AddReqResult::kOther);
  EXPECT_TRUE(next->pages.empty());
  EXPECT_EQ(next->last_node, kNoNode);
}

TEST_F(PrefillAdderTest, WhatOpensTellTheWorkersIsBoundedAndTheFirstIsSpared) {
  kv_.Reset(64 * 1024);
  config_.max_prefill_tokens = 1u << 30;
  const auto penalised = [&](uint32_t len) {
    Req* req = MakeReq(len, 1, 5);
    req->spec.sampling.repetition_penalty = 1.1f;
    return req;
  };
  // A long prefix in the cache, which the requests read instead of computing it.
  Req* writer = MakeReq(90'000, 1, 5);
  kv_.TakePrefix(writer);
  ASSERT_TRUE(kv_.Grow(writer, 90'000));
  writer->num_computed = writer->num_scheduled = 90'000;
  kv_.Release(writer, 90'000);
  PrefillAdder adder = Adder();
  Req* first = penalised(kMaxOpenWords + 5);
  EXPECT_EQ(adder.AddOneReq(first), AddReqResult::kContinue);
  EXPECT_GE(first->num_computed, kMaxOpenWords);
  Req* biased = MakeReq(6, 1);
  biased->spec.logit_bias.resize(1);
  EXPECT_EQ(adder.AddOneReq(biased), AddReqResult::kOther);
  EXPECT_TRUE(biased->pages.empty());
  EXPECT_EQ(adder.AddOneReq(MakeReq(6, 1)), AddReqResult::kContinue) << "tells nothing more";
  batch_.Clear();
  PrefillAdder next = Adder();
  EXPECT_EQ(next.AddOneReq(biased), AddReqResult::kContinue);
  EXPECT_EQ(next.AddOneReq(penalised(kMaxOpenWords / 5 * 4 - 50)), AddReqResult::kContinue);
  EXPECT_EQ(next.AddOneReq(penalised(300)), AddReqResult::kOther);
  batch_.Clear();
  PrefillAdder of_pages = Adder();  // 22,500 pages each
  EXPECT_EQ(of_pages.AddOneReq(MakeReq(90'002, 1, 5)), AddReqResult::kContinue);
  EXPECT_EQ(of_pages.AddOneReq(MakeReq(90'002, 1, 5)), AddReqResult::kContinue);
  EXPECT_EQ(of_pages.AddOneReq(MakeReq(90'002, 1, 5)), AddReqResult::kOther);
}

TEST_F(PrefillAdderTest, MaxPrefillTokensCountsWholePagesAndSparesTheFirst) {
  config_.max_prefill_tokens = 12;
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(5, 1)), AddReqResult::kContinue);  // counts 8
  EXPECT_EQ(adder.AddOneReq(MakeReq(5, 1)), AddReqResult::kOther);
  EXPECT_EQ(adder.AddOneReq(MakeReq(4, 1)), AddReqResult::kContinue);
  batch_.Clear();
  PrefillAdder fresh = Adder();
  EXPECT_EQ(fresh.AddOneReq(MakeReq(30, 1)), AddReqResult::kContinue);
}

TEST_F(PrefillAdderTest, ReservesTheRatioOfWhatRunningAndNewOnesMayGenerate) {
  MakeRunning(40, 80);  // 10 pages held, 10 more expected; 12 remain of 32
  {
    PrefillAdder adder = Adder();
    EXPECT_EQ(adder.AddOneReq(MakeReq(40, 17)), AddReqResult::kNoToken);  // 48.5 tokens: 13 pages
    EXPECT_EQ(adder.AddOneReq(MakeReq(40, 16)), AddReqResult::kContinue);
    EXPECT_EQ(adder.AddOneReq(MakeReq(1, 1)), AddReqResult::kNoToken);
  }
}

TEST_F(PrefillAdderTest, ClipsTheEstimate) {
  config_.clip_max_new_tokens = 8;
  MakeRunning(40, 80);  // 10 pages held, 1 more expected; 21 remain
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(80, 1000)), AddReqResult::kContinue);
}

TEST_F(PrefillAdderTest, AdmitsTheFirstWhateverItMayNeedIfNothingRuns) {
  batch_.new_token_ratio = 1;
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(20, 1000)), AddReqResult::kContinue);
  EXPECT_EQ(adder.AddOneReq(MakeReq(4, 1)), AddReqResult::kNoToken);
}

TEST_F(PrefillAdderTest, AMatchedPrefixIsNotCountedAsRoomAsWell) {
  batch_.new_token_ratio = 0;
  Req* old = MakeReq(64, 1, 7);
  kv_.TakePrefix(old);
  ASSERT_TRUE(kv_.Grow(old, 64));
  old->num_computed = old->num_scheduled = 64;
  kv_.Release(old, 64);  // 16 pages cached
  MakeRunning(40, 0);    // 10 held, 6 free
  // 24 pages, 16 of them cached: the other 8 are not there.
  EXPECT_EQ(Adder().AddOneReq(MakeReq(96, 1, 7)), AddReqResult::kNoToken);
  EXPECT_EQ(kv_.cache().evictable_pages(), 16u);
  Req* fits = MakeReq(88, 1, 7);
  EXPECT_EQ(Adder().AddOneReq(fits), AddReqResult::kContinue);
  EXPECT_EQ(fits->num_computed, 64u);
}

TEST_F(PrefillAdderTest, HoldsBackWhoSharesAnUncachedPrefixOfThisStep) {
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(40, 1, 7)), AddReqResult::kContinue);
  EXPECT_EQ(adder.AddOneReq(MakeReq(36, 1, 7)), AddReqResult::kHeldBack);  // 32 whole-page tokens
  EXPECT_EQ(adder.AddOneReq(MakeReq(8, 1, 7)), AddReqResult::kContinue);   // too little to wait for
  Req* logprobs = MakeReq(36, 1, 7);
  logprobs->spec.sampling.num_prompt_logprobs = 0;  // may not read it
  EXPECT_EQ(adder.AddOneReq(logprobs), AddReqResult::kContinue);
}

// 1 ms a token.
TEST_F(PrefillAdderTest, CutsChunksToTheTimeThatIsLeft) {
  StepCost cost;
  for (uint32_t tokens = 1; tokens < 40; ++tokens) {
    StepWork work;
    work.AddChunk(0, tokens);
    cost.Observe(work, tokens * 1'000'000);
  }
  budget_ = {&cost, 30'500'000};
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(10, 1)), AddReqResult::kContinue);
  EXPECT_EQ(adder.AddOneReq(MakeReq(40, 1)), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[1].num_tokens, 20u) << "whole pages";
  EXPECT_EQ(adder.AddOneReq(MakeReq(40, 1)), AddReqResult::kOther);
  EXPECT_EQ(batch_.rows.size(), 2u);
  batch_.Clear();
  budget_.ns = 0;
  PrefillAdder late = Adder();
  EXPECT_TRUE(late.budget_left());
  EXPECT_EQ(late.AddOneReq(MakeReq(40, 1)), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[0].num_tokens, kMinChunkTokens) << "a prompt must get on";
  EXPECT_FALSE(late.budget_left());
}

TEST_F(PrefillAdderTest, LimitsTheTimeOfLongPromptsMore) {
  StepCost cost;
  for (uint32_t tokens = 1; tokens < 40; ++tokens) {
    StepWork work;
    work.AddChunk(0, tokens);
    cost.Observe(work, tokens * 1'000'000);
  }
  config_.chunked_prefill_size = 64;
  budget_ = {.cost = &cost, .ns = 36'500'000, .long_ns = 8'500'000};
  PrefillAdder adder = Adder();
  EXPECT_EQ(adder.AddOneReq(MakeReq(20, 1)), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[0].num_tokens, 20u);
  Req* long_one = MakeReq(70, 1, 7);
  EXPECT_EQ(adder.AddOneReq(long_one), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[1].num_tokens, 8u);
  EXPECT_EQ(adder.AddOneReq(MakeReq(66, 1, 9)), AddReqResult::kOther) << "no time for another";
  EXPECT_TRUE(adder.budget_left());
  EXPECT_EQ(adder.AddOneReq(MakeReq(12, 1, 11)), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[2].num_tokens, 8u) << "all together";
  // It stays limited to its end.
  long_one->num_scheduled = 48;
  batch_.Clear();
  PrefillAdder next = Adder();
  EXPECT_EQ(next.AddChunkedReq(long_one), AddReqResult::kContinue);
  EXPECT_EQ(batch_.rows[0].num_tokens, 8u);
}

TEST_F(PrefillAdderTest, GivesARunningPromptWhatPagesThereAre) {
  Req* chunked = MakeReq(100, 1);
  kv_.TakePrefix(chunked);
  running_.push_back(chunked);
  MakeRunning(90, 1);  // 23 pages of 32
  EXPECT_EQ(Adder().AddChunkedReq(chunked), AddReqResult::kNoToken);
  ASSERT_EQ(batch_.rows.size(), 1u);
  EXPECT_EQ(batch_.rows[0].num_tokens, 36u);
  chunked->num_computed = chunked->num_scheduled = 36;
  EXPECT_EQ(Adder().AddChunkedReq(chunked), AddReqResult::kNoToken);
  EXPECT_EQ(batch_.rows.size(), 1u);
}

}  // namespace
}  // namespace flotilla
