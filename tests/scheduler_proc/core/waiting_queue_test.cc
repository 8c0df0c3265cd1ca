#include "scheduler_proc/core/waiting_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler_proc/core/queue_fixture.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class WaitingQueueTest : public testing::QueueFixture {};

TEST_F(WaitingQueueTest, LosesTheAdmittedAndTheAborted) {
  for (const auto policy : SchedulePolicyNames()) {
    SCOPED_TRACE(policy);
    UsePolicy(std::string(policy));
    Req* a = MakeReq({1});
    Req* b = MakeReq({1, 2});
    Req* c = MakeReq({1, 2, 3});
    Req* d = MakeReq({1, 2, 3, 4}, /*retracted=*/true);
    for (Req* req : {a, b, c, d}) queue().Add(req);
    EXPECT_EQ(queue().size(), 4u);
    queue().Remove(b);
    EXPECT_EQ(queue().num_tokens(), 8u);
    queue().BeginRound();
    while (Req* req = queue().Next()) {
      if (req == a || req == d) Admit(req);
    }
    queue().EndRound();
    EXPECT_THAT(queue().Order(), ElementsAre(c));
    EXPECT_EQ(queue().num_tokens(), 3u);
    EXPECT_EQ(AdmitBest(), c);
    EXPECT_TRUE(queue().empty());
    EXPECT_EQ(queue().num_tokens(), 0u);
  }
}

// Whatever the policy, N admissions after it came it goes before all that are younger.
TEST_F(WaitingQueueTest, AgeingBringsTheOldestToTheFront) {
  config_.schedule_max_overtakes = 3;
  UsePolicy("lof");
  Req* old = MakeReq({1});
  Req* older_retracted = MakeReq({1}, /*retracted=*/true);
  old->spec.max_new_tokens = 1;
  queue().Add(old);
  for (int i = 0; i < 9; ++i) {
    Req* req = MakeReq({1});
    req->spec.max_new_tokens = 10;
    queue().Add(req);
  }
  for (int i = 0; i < 3; ++i) EXPECT_NE(AdmitBest(), old) << i;
  queue().Add(older_retracted);
  EXPECT_EQ(AdmitBest(), older_retracted);  // which is not overtaking
  EXPECT_EQ(AdmitBest(), old);
  EXPECT_EQ(queue().size(), 6u);
}

TEST_F(WaitingQueueTest, WithoutAgeingTheOldestMayStarve) {
  config_.schedule_max_overtakes = 0;
  UsePolicy("lof");
  Req* old = MakeReq({1});
  old->spec.max_new_tokens = 1;
  queue().Add(old);
  for (int i = 0; i < 50; ++i) {
    Req* req = MakeReq({1});
    req->spec.max_new_tokens = 10;
    queue().Add(req);
    EXPECT_EQ(AdmitBest(), req);
  }
  EXPECT_EQ(AdmitBest(), old);
}

TEST_F(WaitingQueueTest, ARoundGivesEachOnceThoughOneAgesInIt) {
  config_.schedule_max_overtakes = 1;
  UsePolicy("lof");
  Req* longest = MakeReq({1});
  longest->spec.max_new_tokens = 10;
  for (Req* req : {longest, MakeReq({1}), MakeReq({1})}) queue().Add(req);
  queue().BeginRound();
  uint32_t given = 0;
  while (Req* req = queue().Next()) Admit(req), ++given;
  queue().EndRound();
  EXPECT_EQ(given, 3u);
  EXPECT_TRUE(queue().empty());
}

TEST_F(WaitingQueueTest, TheAgedGoByArrivalAfterTheRetracted) {
  config_.schedule_max_overtakes = 1;
  UsePolicy("lof");
  std::vector<Req*> reqs;
  for (int i = 0; i < 6; ++i) queue().Add(reqs.emplace_back(MakeReq({1}, /*retracted=*/i == 3)));
  AdmitBest();  // the retracted one
  AdmitBest();  // now all others are aged
  EXPECT_THAT(queue().Order(), ElementsAre(reqs[1], reqs[2], reqs[4], reqs[5]));
}

}  // namespace
}  // namespace flotilla
