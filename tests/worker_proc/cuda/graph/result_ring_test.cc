// Steps and copies on a device whose streams run in a drawn order: each step's results come once,
// in order, whole, and no call waits.
#include "worker_proc/cuda/graph/result_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/fakes/fake_graph_api.h"

namespace flotilla::cuda {
namespace {

using ::flotilla::testing::FakeGraphApi;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr size_t kWords = 16;

struct Device {
  explicit Device(uint32_t seed) : api(seed), ring(*ResultRing::Create(&api, kWords * 8)) {
    out.resize(kWords);
  }
  // A step whose results are its number, written word by word.
  Status Step(uint64_t number) {
    RETURN_IF_ERROR(ring->BeginStep());
    for (size_t i = 0; i < kWords; ++i) api.Enqueue([this, i, number] { out[i] = number; });
    return ring->EndStep(reinterpret_cast<const std::byte*>(out.data()), kWords * 8);
  }
  FakeGraphApi api;
  std::vector<uint64_t> out;  // where every step puts its results
  std::unique_ptr<ResultRing> ring;
};

std::vector<uint64_t> Words(std::span<const std::byte> bytes) {
  std::vector<uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

TEST(ResultRingTest, EveryStepsResultsComeOnceInOrderAndWhole) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Device device(seed);
    std::mt19937 random(seed);
    uint64_t begun = 0, taken = 0;
    while (taken < 100) {
      if (begun < 100 && device.ring->in_flight() < ResultRing::kSlots && random() % 2 == 0) {
        ASSERT_TRUE(device.Step(++begun).ok());
      }
      if (random() % 2 == 0) device.api.RunOne();
      const auto results = device.ring->Poll();
      ASSERT_TRUE(results.ok());
      if (!results->has_value()) continue;
      ASSERT_EQ(Words(**results), std::vector<uint64_t>(kWords, ++taken)) << "seed " << seed;
      device.ring->Release();
    }
    EXPECT_THAT(device.api.calls, Not(::testing::Contains(::testing::StartsWith("synchronize"))));
  }
}

TEST(ResultRingTest, OrderOfCalls) {
  Device device(1);
  ASSERT_TRUE(device.Step(1).ok());
  EXPECT_THAT(device.api.calls, ElementsAre("record on compute", "wait on copy",
                                            "copy to host on copy", "record on copy"));
  device.api.calls.clear();
  ASSERT_TRUE(device.Step(2).ok());
  EXPECT_EQ(device.api.calls.front(), "wait on compute") << "step 2 may overwrite step 1's results";
}

TEST(ResultRingTest, ResultsThatNobodyTakesStopTheNextStep) {
  Device device(1);
  for (uint64_t step = 1; step <= ResultRing::kSlots; ++step) {
    ASSERT_TRUE(device.Step(step).ok());
  }
  device.api.Drain();
  EXPECT_TRUE(absl::IsResourceExhausted(device.Step(4)));
  ASSERT_TRUE(device.ring->Poll()->has_value());
  device.ring->Release();
  EXPECT_TRUE(device.Step(4).ok());
  device.api.Drain();
  for (uint64_t step = 2; step <= 4; ++step) {
    EXPECT_EQ(Words(**device.ring->Poll()).front(), step);
    device.ring->Release();
  }
  EXPECT_FALSE(device.ring->Poll()->has_value());
  device.ring.reset();
  EXPECT_EQ(device.api.events_alive, 0);
}

}  // namespace
}  // namespace flotilla::cuda
