#include "worker_proc/cuda/plan/device_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::cuda {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMb = 1'000'000;

// Requirement 004's example: Qwen3-0.6B in bf16, blocks of 256 tokens, 24 GB at 0.9.
DeviceKvRequest Example(uint32_t kv_heads) {
  DeviceKvRequest request;
  request.memory = {24'000 * kMb, 0.9, 2'800 * kMb, 2'000 * kMb, 1'200 * kMb};
  request.page_bytes = {KvBlockBytes(28, 256, kv_heads, 128, 2)};
  request.page_size = 256;
  request.context_length = 40'960;
  return request;
}

TEST(DeviceKvPagesTest, TheDocumentsExample) {
  EXPECT_EQ(*DeviceKvPages(Example(8)), 613u);
  EXPECT_EQ(*DeviceKvPages(Example(4)), 1226u);
}

TEST(DeviceKvPagesTest, GraphsAreKeptRoomFor) {
  DeviceKvRequest request = Example(8);
  request.graph_bytes = 1'000 * kMb;
  EXPECT_EQ(*DeviceKvPages(request), 17'000 * kMb / 29'360'128);
}

TEST(DeviceKvPagesTest, TheFlagIsForTheWholeReplica) {
  DeviceKvRequest request = Example(8);
  request.page_bytes = {request.page_bytes[0], request.page_bytes[0] / 2};
  request.kv_cache_memory = 200 * (request.page_bytes[0] + request.page_bytes[1]);
  for (request.rank = 0; request.rank < 2; ++request.rank) {
    EXPECT_EQ(*DeviceKvPages(request), 200u);
  }
}

TEST(DeviceKvPagesTest, ErrorsNameTheFlagThatMendsThem) {
  DeviceKvRequest request = Example(8);
  request.kv_cache_memory = 614 * request.page_bytes[0];
  const Status too_much = DeviceKvPages(request).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_much.message()),
              AllOf(HasSubstr("--kv-cache-memory"), HasSubstr("at most 17164MiB")));
  request.kv_cache_memory = uint64_t{17164} << 20;  // the advice works
  EXPECT_TRUE(DeviceKvPages(request).ok());

  request = Example(8);
  request.memory.utilization = 0.2;
  const Status too_little = DeviceKvPages(request).status();
  EXPECT_THAT(std::string(too_little.message()),
              AllOf(HasSubstr("10240 tokens"), HasSubstr("--gpu-memory-utilization"),
                    HasSubstr("--context-length 10240")));
  request.context_length = 10'240;
  EXPECT_EQ(*DeviceKvPages(request), 40u);
}

}  // namespace
}  // namespace flotilla::cuda
