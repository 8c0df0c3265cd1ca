// The whole table of buckets, and that every step has the smallest one that holds it.
#include "worker_proc/runner/padding_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using Sizes = std::vector<uint32_t>;

Sizes PrefillTokens(const PaddingPolicy& policy) {
  Sizes tokens;
  for (size_t i = 0; i < policy.num_prefill(); ++i)
    tokens.push_back(policy.buckets()[i].num_tokens);
  return tokens;
}
Sizes BatchSizes(const PaddingPolicy& policy) {
  Sizes sizes;
  for (size_t i = policy.num_prefill(); i < policy.buckets().size(); ++i) {
    sizes.push_back(policy.buckets()[i].num_seqs);
    EXPECT_EQ(policy.buckets()[i].num_tokens, sizes.back());
  }
  return sizes;
}

TEST(PaddingPolicyTest, Table) {
  const struct {
    PaddingOptions options;
    PlanShape most;
    Sizes tokens, batch_sizes;
  } table[] = {
      // chunked_prefill_size, max_running_requests
      {{512, 64}, {576, 64}, {16, 32, 64, 128, 256, 512, 576}, {1, 2, 4, 8, 16, 32, 64}},
      {{8192, 64},
       {8256, 64},
       {16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8256},
       {1, 2, 4, 8, 16, 32, 64}},
      {{512, 1}, {513, 1}, {16, 32, 64, 128, 256, 512, 513}, {1}},
      {{512, 3}, {515, 3}, {16, 32, 64, 128, 256, 512, 515}, {1, 2, 3}},
      {{1, 1}, {2, 1}, {2}, {1}},
      {{8, 100}, {108, 100}, {16, 32, 64, 108}, {1, 2, 4, 8, 16, 32, 64, 100}},
      {{512, 64, {128, 576}, {1, 10, 32}}, {576, 64}, {128, 576}, {1, 10, 32, 64}},
      {{512, 64, {8192, 16384}, {500}}, {576, 64}, {576}, {64}},
  };
  for (const auto& row : table) {
    const PlanShape most = GetMaxPaddedSize(row.options);
    EXPECT_EQ(most.num_tokens, row.most.num_tokens);
    EXPECT_EQ(most.num_seqs, row.most.num_seqs);
    const auto policy = PaddingPolicy::Create(row.options);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(PrefillTokens(*policy), row.tokens);
    EXPECT_EQ(BatchSizes(*policy), row.batch_sizes);
    for (size_t i = 0; i < policy->num_prefill(); ++i) {
      EXPECT_EQ(policy->buckets()[i].num_seqs, row.most.num_seqs);
    }
    EXPECT_LE(policy->num_prefill(), 14u);
  }
}

TEST(PaddingPolicyTest, EveryStepHasTheSmallestBucketThatHoldsIt) {
  const auto policy =
      PaddingPolicy::Create({.chunked_prefill_size = 40, .max_running_requests = 6});
  ASSERT_TRUE(policy.ok());
  for (const ForwardMode mode : {ForwardMode::kExtend, ForwardMode::kMixed, ForwardMode::kDecode}) {
    const bool decode = mode == ForwardMode::kDecode;
    for (uint32_t seqs = 1; seqs <= 6; ++seqs) {
      for (uint32_t tokens = seqs; tokens <= (decode ? seqs : 46); ++tokens) {
        const size_t i = policy->BucketOf(mode, {tokens, seqs});
        EXPECT_EQ(i >= policy->num_prefill(), decode);
        EXPECT_GE(policy->buckets()[i].num_tokens, tokens);
        EXPECT_GE(policy->buckets()[i].num_seqs, seqs);
        const bool first = i == 0 || i == policy->num_prefill();
        if (!first) {
          EXPECT_LT(policy->buckets()[i - 1].num_tokens, tokens);
        }
      }
    }
  }
}

TEST(PaddingPolicyTest, PaddingsMustRise) {
  const auto message = [](Sizes tokens, Sizes batch_sizes) {
    return std::string(PaddingPolicy::Create({.precompile_token_paddings = std::move(tokens),
                                              .precompile_bs_paddings = std::move(batch_sizes)})
                           .status()
                           .message());
  };
  EXPECT_THAT(message({64, 32}, {}), HasSubstr("--precompile-token-paddings: 32 follows 64"));
  EXPECT_THAT(message({}, {1, 1}), HasSubstr("--precompile-bs-paddings: 1 follows 1"));
  EXPECT_THAT(message({0}, {}), HasSubstr("--precompile-token-paddings: 0"));
}

}  // namespace
}  // namespace flotilla
