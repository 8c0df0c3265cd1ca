#include "scheduler_proc/core/wait_clock.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace flotilla {
namespace {

TEST(WaitClockTest, CountsWhatHeldSinceTheTotalsWereNoted) {
  WaitClock clock;
  clock.Set(WaitReason::kSlots, 1000);
  const WaitClock::Totals then = clock.At(1500);
  clock.Set(WaitReason::kPages, 2000);
  clock.Set(WaitReason::kSlots, 2400);
  EXPECT_EQ(clock.MainReason(then, 2500), WaitReason::kSlots);  // 600 against 400
  clock.Set(WaitReason::kPages, 2500);
  EXPECT_EQ(clock.MainReason(then, 2600), WaitReason::kSlots);
  EXPECT_EQ(clock.MainReason(then, 2900), WaitReason::kPages);  // 600 against 800
  const WaitClock::Totals now = clock.At(2900);
  int64_t sum = 0;
  for (size_t i = 0; i < now.size(); ++i) sum += now[i] - then[i];
  EXPECT_EQ(sum, 1400);
}

TEST(WaitClockTest, ANoLongerWaitThanNothingHasTheFirstReason) {
  WaitClock clock;
  clock.Set(WaitReason::kSlots, 1000);
  EXPECT_EQ(clock.MainReason(clock.At(1000), 1000), WaitReason::kNextStep);
}

TEST(WaitClockTest, TimeNeverRunsBackwards) {
  WaitClock clock;
  clock.Set(WaitReason::kSlots, 1000);
  clock.Set(WaitReason::kPages, 900);
  EXPECT_EQ(clock.At(1000), clock.At(900));
  EXPECT_EQ(clock.MainReason(clock.At(1000), 1001), WaitReason::kPages);
}

TEST(WaitClockTest, EveryReasonHasItsOwnName) {
  std::set<std::string> names;
  for (uint32_t i = 0; i < static_cast<uint32_t>(WaitReason::kNumReasons); ++i) {
    EXPECT_TRUE(names.insert(WaitReasonName(static_cast<WaitReason>(i))).second);
  }
}

}  // namespace
}  // namespace flotilla
