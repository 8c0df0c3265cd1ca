// The arithmetic of `flotilla size` on round numbers: a page of 16 tokens is 16 KiB on each of two
// ranks, so a token is 2 KiB, and a request of 1,024 tokens 2 MiB.
#include "worker_proc/bench/size_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::bench {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class SizePlanTest : public ::testing::Test {
 protected:
  SizePlanTest() {
    model_ = {.weight_bytes = {100 * kMiB, 100 * kMiB},
              .page_bytes = {16 * kKiB, 16 * kKiB},
              .page_size = 16,
              .context_length = 4096};
    load_ = {.requests = 10, .input_len = 900, .output_len = 124};
  }
  SizePlan Plan() const {
    const StatusOr<SizePlan> plan = PlanSize(model_, load_, rate_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : SizePlan();
  }
  std::string Error() const {
    const StatusOr<SizePlan> plan = PlanSize(model_, load_, rate_);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << plan.status();
    return std::string(plan.status().message());
  }
  ModelMemory model_;
  SizeLoad load_;
  ReplicaRate rate_;
};

TEST_F(SizePlanTest, OneReplicaHoldsAllUnlessSomethingElseIsAskedFor) {
  const SizePlan plan = Plan();
  EXPECT_EQ(plan.replicas, 1u);
  EXPECT_EQ(plan.because, "--requests");
  EXPECT_EQ(plan.requests, 10u);
  EXPECT_EQ(plan.kv_cache_memory, 20 * kMiB);
  EXPECT_EQ(plan.pages, 640u);
  EXPECT_THAT(plan.rank_bytes, ::testing::ElementsAre(110 * kMiB, 110 * kMiB));
  EXPECT_EQ(plan.replica_bytes, 220 * kMiB + kReplicaOverheadBytes);
  EXPECT_EQ(plan.tokens_per_second, 0);
}

TEST_F(SizePlanTest, RequestsAreRoundedUpToPagesAndTheCacheToMiB) {
  load_.output_len = 125;  // 65 pages
  EXPECT_EQ(Plan().kv_cache_memory, 21 * kMiB);
  EXPECT_EQ(Plan().pages, 21 * kMiB / (32 * kKiB)) << "those of the flag, not only the 650 needed";
}

TEST_F(SizePlanTest, OneContextFitsHoweverFewRequests) {
  load_.requests = 1;
  EXPECT_EQ(Plan().kv_cache_memory, 8 * kMiB);
  model_.context_length = 1024;
  EXPECT_EQ(Plan().kv_cache_memory, 2 * kMiB);
}

TEST_F(SizePlanTest, MemoryOfAReplicaLimitsItsRequests) {
  load_.replica_memory = kReplicaOverheadBytes + 201 * kMiB + 8 * kMiB;
  SizePlan plan = Plan();
  EXPECT_EQ(plan.replicas, 3u) << "four requests fit each";
  EXPECT_EQ(plan.because, "--replica-memory");
  EXPECT_EQ(plan.requests, 4u);
  EXPECT_LE(plan.replica_bytes, load_.replica_memory);
  load_.replica_memory -= 1;
  EXPECT_THAT(Error(), AllOf(HasSubstr("--replica-memory 509 MiB"),
                             HasSubstr("200 MiB of the weights"), HasSubstr("--context-length")));
  model_.context_length = 1024;  // the advice works
  plan = Plan();
  EXPECT_EQ(plan.replicas, 4u);
  EXPECT_LE(plan.replica_bytes, load_.replica_memory);
}

TEST_F(SizePlanTest, TokensASecond) {
  load_.tokens_per_second = 1000;
  EXPECT_THAT(Error(), AllOf(HasSubstr("--tokens-per-second"), HasSubstr("--measured")));
  rate_.output = 500;
  load_.utilization = 1;
  EXPECT_EQ(Plan().replicas, 2u);
  EXPECT_EQ(Plan().because, "--tokens-per-second");
  EXPECT_EQ(Plan().requests, 5u);
  EXPECT_EQ(Plan().tokens_per_second, 1000);
  load_.utilization = 0.8;
  EXPECT_EQ(Plan().replicas, 3u);
  EXPECT_EQ(Plan().requests, 4u) << "the most of any";
}

TEST_F(SizePlanTest, ATokenSoOftenForEachRequest) {
  load_.inter_token_ms = 20;  // 50 a second, of ten requests
  EXPECT_THAT(Error(), HasSubstr("--inter-token-ms"));
  rate_.output = 100;
  load_.utilization = 1;
  EXPECT_EQ(Plan().replicas, 5u);
  EXPECT_EQ(Plan().because, "--inter-token-ms");
  load_.tokens_per_second = 900;  // what needs more decides
  EXPECT_EQ(Plan().replicas, 9u);
  EXPECT_EQ(Plan().because, "--tokens-per-second");
}

TEST_F(SizePlanTest, AFirstTokenInTimeEvenIfAllComeAtOnce) {
  load_.ttft_ms = 1000;
  EXPECT_THAT(Error(), AllOf(HasSubstr("--ttft-ms"), HasSubstr("--measured-prompt-rate")));
  load_.utilization = 1;
  rate_.prompt = 3600;  // a prompt takes 250 ms
  EXPECT_EQ(Plan().replicas, 3u);
  EXPECT_EQ(Plan().because, "--ttft-ms");
  EXPECT_EQ(Plan().requests, 4u);
  load_.ttft_ms = 249;
  EXPECT_THAT(Error(), AllOf(HasSubstr("--ttft-ms 249"), HasSubstr("takes 250 ms"),
                             HasSubstr("--input-len")));
}

TEST_F(SizePlanTest, NoReplicaRunsMoreThanItsFlagAllows) {
  load_.requests = 4097;
  EXPECT_EQ(Plan().replicas, 2u);
  EXPECT_EQ(Plan().because, "--requests");
}

TEST_F(SizePlanTest, WhatCantBe) {
  load_.input_len = 4000;
  EXPECT_THAT(Error(), AllOf(HasSubstr("--input-len 4000"), HasSubstr("--output-len 124")));
  model_.context_length = load_.input_len = 1 << 20;
  load_.output_len = 0;
  load_.requests = 4096;
  model_.page_size = 1;
  EXPECT_THAT(Error(), HasSubstr("--requests"));
}

}  // namespace
}  // namespace flotilla::bench
