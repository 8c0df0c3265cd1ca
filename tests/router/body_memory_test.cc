#include "router/admission/body_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/clock.h"

namespace flotilla {
namespace {

constexpr uint64_t kMost = 8 << 20;

class BodyMemoryTest : public testing::Test {
 protected:
  int64_t held_ = 0;
  std::unique_ptr<BodyMemory> memory_ =
      std::make_unique<BodyMemory>(kMost, 1 << 20, [this](int64_t delta) { held_ += delta; });
};

TEST_F(BodyMemoryTest, LargeBodiesLeaveAnEighthToSmallOnes) {
  std::vector<BodyLease> large;
  for (int i = 0; i < 7; ++i) large.push_back(memory_->Reserve(1 << 20));
  EXPECT_NE(large.back(), nullptr);
  EXPECT_EQ(memory_->Reserve(kFreeBodyBytes + 1), nullptr);
  std::vector<BodyLease> small;
  for (int i = 0; i < 16; ++i) small.push_back(memory_->Reserve(kFreeBodyBytes));
  EXPECT_NE(small.back(), nullptr);
  EXPECT_EQ(memory_->Reserve(1), nullptr) << "everything is taken";
  EXPECT_EQ(held_, static_cast<int64_t>(kMost));
  large.pop_back();
  EXPECT_NE(memory_->Reserve(1), nullptr);
}

TEST_F(BodyMemoryTest, AloneABodyMayBeAsLargeAsEverything) {
  EXPECT_EQ(memory_->Reserve(kMost + 1), nullptr);
  BodyLease all = memory_->Reserve(kMost);
  ASSERT_NE(all, nullptr);
  EXPECT_TRUE(memory_->Resize(all, 10));
  EXPECT_EQ(held_, 10);
  const BodyLease other = memory_->Reserve(10);
  EXPECT_FALSE(memory_->Resize(all, kMost - 10)) << "no longer alone";
  EXPECT_EQ(held_, 20);
  EXPECT_TRUE(memory_->Resize(all, kMost - kMost / 8 - 10));
}

TEST_F(BodyMemoryTest, LeasesOutliveTheMemory) {
  BodyLease lease = memory_->Reserve(100);
  memory_.reset();
  lease.reset();
  EXPECT_EQ(held_, 100) << "nobody is told any more";
}

TEST_F(BodyMemoryTest, LargeBodiesTogetherComeAtTheRate) {
  const int64_t begin_ns = RealClock::Now();
  EXPECT_NEAR(static_cast<double>(memory_->Pace(1 << 20)), 1e9, 1e8);
  const auto second = static_cast<double>(memory_->Pace(1 << 19));
  EXPECT_LT(second, 1.5e9 + 1e8);
  EXPECT_GT(second, 1.5e9 - 1e8 - static_cast<double>(RealClock::Now() - begin_ns));
}

}  // namespace
}  // namespace flotilla
