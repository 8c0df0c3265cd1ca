#include "worker_proc/runner/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMb = 1'000'000;

// Requirement 004's example: Qwen3-0.6B, bf16, 24 GB at 0.9. Its 29.36 MB a block and 613 blocks
// belong to the model's real 8 kv heads, although the text writes 4.
TEST(KvCacheTest, WorkedExample) {
  EXPECT_EQ(KvBlockBytes(28, 256, 8, 128, 2), 29'360'128u);
  EXPECT_EQ(KvBlockBytes(28, 256, 4, 128, 2), 14'680'064u);
  // used = 2.8 GB: what makes the document's "about 18 GB".
  const uint64_t bytes = KvCacheBytes({24'000 * kMb, 0.9, 2'800 * kMb, 2'000 * kMb, 1'200 * kMb});
  EXPECT_EQ(bytes, 18'000 * kMb);
  EXPECT_EQ(bytes / KvBlockBytes(28, 256, 8, 128, 2), 613u);
  EXPECT_EQ(bytes / KvBlockBytes(28, 256, 4, 128, 2), 1226u);
  EXPECT_EQ(bytes / KvBlockBytes(28, 256, 8, 128, 2) * 256, 156'928u);  // about 157K tokens
}

TEST(KvCacheTest, NothingLeftIsZeroNotHuge) { EXPECT_EQ(KvCacheBytes({1000, 0.5, 600, 0, 0}), 0u); }

TEST(KvCacheTest, WhatTheWarmUpTakesIsNotTheCaches) {
  const DeviceMemory memory = MemoryAfterWarmup(1000, 500, 800, 0.9);  // 200: others'
  EXPECT_EQ(memory.used, 500u);
  EXPECT_EQ(memory.current, 300u);
  EXPECT_EQ(memory.peak, 300u);
  EXPECT_EQ(KvCacheBytes(memory), 400u);
  EXPECT_EQ(MemoryAfterWarmup(1000, 900, 800, 0.9).current, 0u) << "others gave memory back";
}

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
  request.graph_bytes = 17'500 * kMb;
  EXPECT_EQ(*DeviceKvPages(request), 160u) << "one context comes first";
  request.graph_bytes = 90'000 * kMb;
  EXPECT_EQ(*DeviceKvPages(request), 160u);
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

constexpr uint64_t kGiB = uint64_t{1} << 30;

// SmolLM2 in fp32: 245,760 bytes a page of 16 tokens for each kv head.
HostKvRequest SmolLm2(uint64_t memory, uint64_t available, std::vector<uint64_t> page_bytes) {
  return {memory, available, std::move(page_bytes), 16, 8192};
}

TEST(HostKvPagesTest, TheFlagIsForTheWholeReplicaAndPagesAreEqualOnAllRanks) {
  const std::vector<std::vector<uint64_t>> splits = {
      {737'280}, {491'520, 245'760}, {245'760, 245'760, 245'760}};
  for (const auto& split : splits) {
    EXPECT_EQ(*HostKvPages(SmolLm2(kGiB, 8 * kGiB, split)), kGiB / 737'280);
  }
}

TEST(HostKvPagesTest, AutomaticIsHalfAGiBOrOneContextAtMostAQuarterOfWhatIsAvailable) {
  EXPECT_EQ(*HostKvPages(SmolLm2(0, 64 * kGiB, {737'280})), kGiB / 2 / 737'280);
  EXPECT_EQ(*HostKvPages(SmolLm2(0, 8 * kGiB / 5, {737'280})), 8 * kGiB / 5 / 4 / 737'280);
  // A larger model: 8192 tokens of 128 KiB.
  EXPECT_EQ(*HostKvPages(SmolLm2(0, 64 * kGiB, {16 * 131'072})), 8192u / 16);
  EXPECT_FALSE(HostKvPages(SmolLm2(0, 3 * kGiB, {16 * 131'072})).ok());
}

TEST(HostKvPagesTest, OfSeveralHostsEachHasItsOwnMemory) {
  HostKvRequest request = SmolLm2(3 * kGiB, 2 * kGiB, {491'520, 245'760});
  EXPECT_FALSE(HostKvPages(request).ok());
  request.local_ranks = 1;  // two thirds of 3 GiB
  request.available_bytes += 491'520;
  EXPECT_EQ(*HostKvPages(request), 3 * kGiB / 737'280);
  request.available_bytes -= 1 << 20;
  EXPECT_THAT(std::string(HostKvPages(request).status().message()), HasSubstr("on this host"));
  request.first_local_rank = 1;  // one third
  EXPECT_TRUE(HostKvPages(request).ok());
  request.kv_cache_memory = 0;
  request.context_length = 2048;
  request.available_bytes = kGiB / 5;
  EXPECT_EQ(*HostKvPages(request), kGiB / 5 / 245'760 / 4) << "a quarter of both hosts'";
}

TEST(HostKvPagesTest, ErrorsNameTheFlagThatMendsThem) {
  const auto too_small = HostKvPages(SmolLm2(100 << 20, kGiB, {737'280}));
  ASSERT_EQ(too_small.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_small.status().message()),
              AllOf(HasSubstr("2272 tokens"), HasSubstr("--kv-cache-memory 361MiB"),
                    HasSubstr("--context-length 2272")));
  // The advice works.
  EXPECT_TRUE(HostKvPages(SmolLm2(361 << 20, kGiB, {737'280})).ok());
  HostKvRequest shorter = SmolLm2(100 << 20, kGiB, {737'280});
  shorter.context_length = 2272;
  EXPECT_TRUE(HostKvPages(shorter).ok());

  const auto too_much = HostKvPages(SmolLm2(2 * kGiB, kGiB, {737'280}));
  EXPECT_THAT(std::string(too_much.status().message()), HasSubstr("1.0 GiB that are available"));
  const auto automatic = HostKvPages(SmolLm2(0, kGiB, {737'280}));
  EXPECT_THAT(std::string(automatic.status().message()),
              HasSubstr("automatic KV cache of 256 MiB"));
}

}  // namespace
}  // namespace flotilla
