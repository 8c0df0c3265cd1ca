#include "scheduler_proc/loop/step_port.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(StepPortTest, TellsHowFullTheRingIs) {
  const Segment segment = *Segment::Create("steps", RingSegmentBytes(4096));
  ASSERT_TRUE(InitRing(segment, 1).ok());
  RingReader reader = *RingReader::Attach(&segment, 0, WaitPolicy{});
  const RealClock clock;
  prometheus::Gauge fill;
  RingStepPort port(*RingWriter::Attach(&segment), nullptr, &clock, &fill);
  StepPlan plan;
  plan.command = StepCommand::kReset;
  ASSERT_TRUE(port.Publish(plan).ok());
  const double one = fill.Value();
  EXPECT_GT(one, 0);
  ASSERT_TRUE(port.Publish(plan).ok());
  EXPECT_DOUBLE_EQ(fill.Value(), 2 * one);  // the reader has taken nothing
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(reader.TryRead()->empty());
    reader.Release();
  }
  ASSERT_TRUE(port.Publish(plan).ok());
  EXPECT_DOUBLE_EQ(fill.Value(), one);
}

}  // namespace
}  // namespace flotilla
