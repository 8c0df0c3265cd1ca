#include "scheduler_proc/core/schedule_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class SchedulePolicyTest : public ::testing::Test {
 protected:
  SchedulePolicyTest() { kv_.Reset(64); }

  Req* MakeReq(std::vector<int32_t> tokens, bool retracted = false) {
    Req& req = reqs_.emplace_back();
    req.seq = reqs_.size();
    req.token_ids = std::move(tokens);
    req.prompt_len = req.len();
    req.retracted = retracted;
    kv_.Attach(&req);
    return &req;
  }
  void Cache(std::vector<int32_t> tokens) {
    Req* req = MakeReq(std::move(tokens));
    kv_.TakePrefix(req);
    ASSERT_TRUE(kv_.Grow(req, req->len()));
    req->num_computed = req->num_scheduled = req->len();
    kv_.Release(req, req->len());
  }

  KvPool kv_{/*page_size=*/1, /*enable_prefix_cache=*/true};
  std::deque<Req> reqs_;
};

TEST_F(SchedulePolicyTest, TheTableHasWhatItNames) {
  for (const auto name : SchedulePolicyNames()) {
    ASSERT_NE(FindSchedulePolicy(name), nullptr);
    EXPECT_EQ(FindSchedulePolicy(name)->name, name);
  }
  EXPECT_EQ(FindSchedulePolicy("FCFS"), nullptr);
  EXPECT_EQ(FindSchedulePolicy(""), nullptr);
}

TEST_F(SchedulePolicyTest, FcfsGoesByArrivalRetractedFirst) {
  WaitingQueue queue(*FindSchedulePolicy("fcfs"));
  Req* retracted_early = MakeReq({1}, true);
  Req* first = MakeReq({1, 2});
  Req* second = MakeReq({1, 2, 3});
  Req* retracted_late = MakeReq({1}, true);
  Cache({1, 2, 3});
  for (Req* req : {first, second, retracted_late, retracted_early}) queue.Add(req);
  queue.CalcPriority(kv_);
  EXPECT_THAT(queue.reqs(), ElementsAre(retracted_early, retracted_late, first, second));
  EXPECT_EQ(queue.num_tokens(), 7u);
}

TEST_F(SchedulePolicyTest, LpmGoesByCachedPrefixAndFollowsTheCache) {
  WaitingQueue queue(*FindSchedulePolicy("lpm"));
  Req* none = MakeReq({9, 9, 9, 9});
  Req* some = MakeReq({1, 2, 7, 7});
  Req* most = MakeReq({1, 2, 3, 4});
  Req* retracted = MakeReq({8, 8}, true);
  Cache({1, 2, 3, 4});
  for (Req* req : {none, some, most, retracted}) queue.Add(req);
  queue.CalcPriority(kv_);
  EXPECT_THAT(queue.reqs(), ElementsAre(retracted, most, some, none));
  Cache({9, 9, 9, 9});
  queue.CalcPriority(kv_);
  EXPECT_THAT(queue.reqs(), ElementsAre(retracted, none, most, some));  // equal: by arrival
}

TEST_F(SchedulePolicyTest, RemovesTheScheduledAndTheAborted) {
  WaitingQueue queue(*FindSchedulePolicy("fcfs"));
  Req* a = MakeReq({1});
  Req* b = MakeReq({1, 2});
  Req* c = MakeReq({1, 2, 3});
  for (Req* req : {a, b, c}) queue.Add(req);
  queue.Remove(b);
  queue.Remove(b);
  EXPECT_EQ(queue.num_tokens(), 4u);
  a->state = ReqState::kRunning;
  queue.RemoveScheduled();
  EXPECT_THAT(queue.reqs(), ElementsAre(c));
  EXPECT_EQ(queue.num_tokens(), 3u);
}

}  // namespace
}  // namespace flotilla
