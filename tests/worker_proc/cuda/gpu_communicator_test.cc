// NCCL on a real GPU, with the one rank that it takes there: joining, an exchange, one in a graph,
// and the end. NCCL refuses two ranks on one GPU; that is said, not waited for.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "worker_proc/cuda/device.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kBytes = 100'000;

class GpuCommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = OpenDevice(0);
    if (absl::IsNotFound(device.status())) GTEST_SKIP() << "skipped: " << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = std::move(*device);
    const auto id = device_->NewCommunicatorId();
    if (absl::IsUnimplemented(id.status())) {
      GTEST_SKIP() << "skipped: --device cuda without NCCL: " << id.status().message();
    }
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }
  std::unique_ptr<Device> device_;
  CommunicatorId id_;
};

TEST_F(GpuCommunicatorTest, OneRankGathersWhatItHasInAGraphToo) {
  auto joined = device_->Join(id_, 0, 1, [] { return false; });
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(std::string((*joined)->name()).starts_with("NCCL 2."));
  auto from = device_->Allocate(kBytes);
  auto to = device_->Allocate(kBytes);
  ASSERT_TRUE(from.ok() && to.ok());
  std::vector<uint8_t> values(kBytes);
  std::iota(values.begin(), values.end(), uint8_t{0});
  const std::vector<size_t> bytes = {kBytes};
  const auto expect = [&] {
    std::vector<uint8_t> got(kBytes);
    device_->Download(to->data(), kBytes, got.data());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(got, values);
    EXPECT_TRUE((*joined)->Error().ok());
  };
  device_->UploadAll(values, *from);
  ASSERT_TRUE((*joined)->AllGather(from->data(), bytes, to->data()).ok());
  expect();
  ASSERT_TRUE(device_->graphs()->BeginCapture().ok());
  ASSERT_TRUE((*joined)->AllGather(from->data(), bytes, to->data()).ok());
  const auto graph = device_->graphs()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (uint8_t add = 1; add < 4; ++add) {
    for (uint8_t& value : values) value = static_cast<uint8_t>(value + add);
    device_->UploadAll(values, *from);
    ASSERT_TRUE(device_->graphs()->Launch(*graph).ok());
    expect();
  }
  device_->graphs()->DestroyGraph(*graph);
  (*joined)->Abort();
  EXPECT_FALSE((*joined)->AllGather(from->data(), bytes, to->data()).ok());
}

TEST_F(GpuCommunicatorTest, TwoRanksOnOneGpuAreRefused) {
  const auto join = [this](uint32_t rank, Status* status) {
    auto device = OpenDevice(0);
    ASSERT_TRUE(device.ok());
    const auto begin = std::chrono::steady_clock::now();
    *status =
        (*device)
            ->Join(
                id_, rank, 2,
                [&] { return std::chrono::steady_clock::now() - begin > std::chrono::seconds(30); })
            .status();
  };
  Status first;
  Status second;
  std::thread other(join, 1, &second);
  join(0, &first);
  other.join();
  EXPECT_FALSE(first.ok());
  EXPECT_FALSE(second.ok());
}

}  // namespace
}  // namespace flotilla::cuda
