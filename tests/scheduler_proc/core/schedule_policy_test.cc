#include "scheduler_proc/core/schedule_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/base/flags.h"
#include "tests/scheduler_proc/core/queue_fixture.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class SchedulePolicyTest : public testing::QueueFixture {};

TEST_F(SchedulePolicyTest, TheTableHasWhatItNames) {
  for (const auto name : SchedulePolicyNames()) {
    ASSERT_NE(FindSchedulePolicy(name), nullptr);
    EXPECT_EQ(FindSchedulePolicy(name)->name, name);
  }
  EXPECT_THAT(SchedulePolicyNames(), ElementsAreArray(kSchedulePolicies)) << "of the flag";
  EXPECT_EQ(FindSchedulePolicy("FCFS"), nullptr);
  EXPECT_EQ(FindSchedulePolicy(""), nullptr);
}

TEST_F(SchedulePolicyTest, FcfsGoesByArrivalRetractedFirst) {
  UsePolicy("fcfs");
  Req* retracted_early = MakeReq({1}, true);
  Req* first = MakeReq({1, 2});
  Req* second = MakeReq({1, 2, 3});
  Req* retracted_late = MakeReq({1}, true);
  Cache({1, 2, 3});
  for (Req* req : {first, second, retracted_late, retracted_early}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(retracted_early, retracted_late, first, second));
  EXPECT_EQ(queue().num_tokens(), 7u);
}

TEST_F(SchedulePolicyTest, LpmGoesByCachedPrefixAndFollowsTheCache) {
  UsePolicy("lpm");
  Req* none = MakeReq({9, 9, 9, 9});
  Req* some = MakeReq({1, 2, 7, 7});
  Req* most = MakeReq({1, 2, 3, 4});
  Req* retracted = MakeReq({8, 8}, true);
  Cache({1, 2, 3, 4});
  for (Req* req : {none, some, most, retracted}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, most, some, none));
  Cache({9, 9, 9, 9});
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, none, most, some));  // equal: by arrival
}

TEST_F(SchedulePolicyTest, LofGoesByMaxNewTokens) {
  UsePolicy("lof");
  Req* medium = MakeReq({1});
  Req* same = MakeReq({1});
  Req* longest = MakeReq({1, 2, 3});
  Req* shortest = MakeReq({1});
  medium->spec.max_new_tokens = same->spec.max_new_tokens = 20;
  longest->spec.max_new_tokens = 30;
  shortest->spec.max_new_tokens = 10;
  for (Req* req : {shortest, medium, longest, same}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(longest, medium, same, shortest));
}

TEST_F(SchedulePolicyTest, PriorityGoesByPriorityRetractedFirstAmongTheirOwn) {
  UsePolicy("priority");
  Req* low = MakeReq({1});
  Req* low_retracted = MakeReq({1}, /*retracted=*/true);
  Req* high = MakeReq({1});
  Req* high_late = MakeReq({1});
  low->spec.priority = low_retracted->spec.priority = -5;
  high->spec.priority = high_late->spec.priority = 7;
  Req* middle = MakeReq({1});
  for (Req* req : {middle, low, high_late, low_retracted, high}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(high, high_late, middle, low_retracted, low));
}

// Each of 24 orders of four requests comes about as often: 100 of 2,400 times, with a standard
// deviation of 10.
TEST_F(SchedulePolicyTest, RandomDrawsEvenlyAndRepeatably) {
  UsePolicy("random");
  std::vector<Req*> reqs;
  for (int i = 0; i < 4; ++i) queue().Add(reqs.emplace_back(MakeReq({1})));
  std::map<std::vector<Req*>, uint32_t> orders;
  std::vector<std::vector<Req*>> sequence;
  for (int i = 0; i < 2400; ++i) ++orders[sequence.emplace_back(queue().Order())];
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 100, 45);
  const auto draw_again = [&](uint64_t seed) {
    for (Req* req : reqs) queue().Remove(req);
    config_.schedule_random_seed = seed;
    UsePolicy("random");
    for (Req* req : reqs) queue().Add(req);
    std::vector<std::vector<Req*>> again;
    for (int i = 0; i < 20; ++i) again.push_back(queue().Order());
    return again;
  };
  const auto same_seed = draw_again(0);
  EXPECT_TRUE(std::equal(same_seed.begin(), same_seed.end(), sequence.begin()));
  EXPECT_NE(draw_again(1), same_seed);
}

}  // namespace
}  // namespace flotilla
