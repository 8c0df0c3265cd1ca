#include "router/fleet/load_tracker.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

v1::Step StepWith(uint64_t queued, uint64_t submits) {
  v1::Step step;
  step.mutable_load()->set_queued_tokens(queued);
  step.set_submits(submits);
  return step;
}

TEST(LoadTrackerTest, SubmissionsCountUntilAFrameCountsThemIn) {
  LoadTracker tracker;
  tracker.Reset({});
  tracker.OnSubmit(1, 100);
  tracker.OnSubmit(2, 50);
  EXPECT_EQ(tracker.unreported_tokens(), 150u);
  tracker.OnStep(StepWith(100, 1));
  EXPECT_EQ(tracker.queued_tokens(), 100u);
  EXPECT_EQ(tracker.unreported_tokens(), 50u);
  tracker.OnStep(StepWith(100, 1));
  tracker.OnStep(StepWith(100, 1));
  EXPECT_EQ(tracker.unreported_tokens(), 50u) << "a replica that counts is believed";
  tracker.OnStep(StepWith(150, 2));
  EXPECT_EQ(tracker.unreported_tokens(), 0u);
}

TEST(LoadTrackerTest, WhatIsCachedNeedNotBeComputedWhileItWaits) {
  LoadTracker tracker;
  tracker.Reset({});
  tracker.OnSubmit(1, 100, 80);
  tracker.OnSubmit(2, 100, 64);
  tracker.OnSubmit(3, 100, 0);
  EXPECT_EQ(tracker.cached_tokens(), 144u);
  tracker.OnStep(StepWith(200, 2));  // it counts whole prompts
  EXPECT_EQ(tracker.cached_tokens(), 144u);
  v1::Step step = StepWith(200, 3);
  step.add_deltas()->set_stream_id(1);
  tracker.OnStep(step);
  EXPECT_EQ(tracker.cached_tokens(), 64u);
  tracker.OnStep(StepWith(20, 3));  // the second is computed; not more than there is
  EXPECT_EQ(tracker.cached_tokens(), 20u);
  tracker.OnAnswered(2);
  tracker.OnAnswered(2);
  EXPECT_EQ(tracker.cached_tokens(), 0u);
  tracker.OnSubmit(4, 100, 50);
  tracker.Reset({});
  EXPECT_EQ(tracker.cached_tokens(), 0u);
}

TEST(LoadTrackerTest, WithoutCountsTheFirstDeltaOrTheSecondFrameTells) {
  LoadTracker tracker;
  tracker.Reset({});
  tracker.OnSubmit(7, 10);
  tracker.OnSubmit(8, 20);
  v1::Step step = StepWith(30, 0);
  step.add_deltas()->set_stream_id(8);
  tracker.OnStep(step);
  EXPECT_EQ(tracker.unreported_tokens(), 10u);
  tracker.OnStep(StepWith(30, 0));
  EXPECT_EQ(tracker.unreported_tokens(), 0u);
}

TEST(LoadTrackerTest, AFrameWithoutLoadKeepsTheLastOne) {
  LoadTracker tracker;
  tracker.Reset({});
  tracker.OnStep(StepWith(5, 0));
  v1::Step bare;
  tracker.OnSubmit(1, 3);
  tracker.OnStep(bare);
  tracker.OnStep(bare);
  EXPECT_EQ(tracker.queued_tokens(), 5u);
  EXPECT_EQ(tracker.unreported_tokens(), 3u);
}

TEST(LoadTrackerTest, ANewConnectionStartsFromWelcome) {
  LoadTracker tracker;
  tracker.OnSubmit(1, 1000);
  v1::Load load;
  load.set_running_tokens(12);
  load.set_draining(true);
  tracker.Reset(load);
  EXPECT_EQ(tracker.unreported_tokens(), 0u);
  EXPECT_EQ(tracker.running_tokens(), 12u);
  EXPECT_TRUE(tracker.draining());
}

}  // namespace
}  // namespace flotilla
