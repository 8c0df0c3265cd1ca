// Every batch size → its bucket, and what padding that costs.
#include "worker_proc/cuda/plan/graph_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<uint32_t> Requests(const GraphSizeOptions& options) {
  const auto buckets = GraphBuckets(options);
  EXPECT_TRUE(buckets.ok()) << buckets.status();
  std::vector<uint32_t> sizes;
  for (const PlanShape& bucket : *buckets) {
    EXPECT_EQ(bucket.num_tokens, bucket.num_seqs * options.tokens_per_request);
    sizes.push_back(bucket.num_seqs);
  }
  return sizes;
}

TEST(GraphSizesTest, Table) {
  EXPECT_THAT(Requests({.max_running_requests = 1}), ElementsAre(1));
  EXPECT_THAT(Requests({.max_running_requests = 64}),
              ElementsAre(1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64));
  // What no step exceeds is a bucket, although it is no step of the list.
  EXPECT_THAT(Requests({.max_running_requests = 30}), ElementsAre(1, 2, 4, 8, 12, 16, 24, 30));
  EXPECT_THAT(Requests({.max_running_requests = 256, .cuda_graph_max_size = 20}),
              ElementsAre(1, 2, 4, 8, 12, 16, 20));
  EXPECT_THAT(Requests({.max_running_requests = 64, .cuda_graph_max_size = 0}), IsEmpty());
  EXPECT_THAT(Requests({.max_running_requests = 64, .cuda_graph_sizes = {3, 10, 200}}),
              ElementsAre(3, 10, 64));
}

TEST(GraphSizesTest, EightApartTo256ThenSixteen) {
  const auto sizes = Requests({.max_running_requests = 4096});
  EXPECT_EQ(sizes.back(), 512u);
  for (size_t i = 6; i < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i] - sizes[i - 1], sizes[i - 1] < 256 ? 8u : 16u) << sizes[i];
  }
  EXPECT_EQ(sizes.size(), 5u + 31 + 16);
}

TEST(GraphSizesTest, TokensOfSpeculativeSteps) {
  // Four tokens a request: the flags count tokens, buckets hold whole requests.
  EXPECT_THAT(
      Requests({.max_running_requests = 64, .tokens_per_request = 4, .cuda_graph_max_size = 66}),
      ElementsAre(1, 2, 4, 8, 12, 16));
  EXPECT_THAT(
      Requests({.max_running_requests = 64, .tokens_per_request = 4, .cuda_graph_sizes = {4, 40}}),
      ElementsAre(1, 10, 64));
}

TEST(GraphSizesTest, EveryStepHasTheSmallestBucketThatHoldsIt) {
  for (const uint32_t tokens_per_request : {1u, 3u}) {
    const auto buckets = GraphBuckets({.max_running_requests = 100,
                                       .tokens_per_request = tokens_per_request,
                                       .cuda_graph_max_size = 240});
    ASSERT_TRUE(buckets.ok());
    uint64_t padding = 0, worst = 0;
    for (uint32_t seqs = 1; seqs <= 120; ++seqs) {
      const PlanShape step{seqs * tokens_per_request, seqs};
      const auto at = GraphBucketOf(*buckets, step);
      ASSERT_EQ(at.has_value(), seqs <= std::min(100u, 240 / tokens_per_request)) << seqs;
      if (!at.has_value()) continue;
      EXPECT_GE((*buckets)[*at].num_seqs, seqs);
      if (*at > 0) {
        EXPECT_LT((*buckets)[*at - 1].num_seqs, seqs);
      }
      padding += (*buckets)[*at].num_seqs - seqs;
      worst = std::max<uint64_t>(worst, (*buckets)[*at].num_seqs - seqs);
    }
    EXPECT_LE(worst, 7u);
    RecordProperty(StrCat("padding_of_", tokens_per_request), static_cast<int>(padding));
  }
  // Few tokens of many requests need the room of the requests.
  const auto buckets = GraphBuckets({.max_running_requests = 16, .tokens_per_request = 4});
  EXPECT_EQ((*buckets)[*GraphBucketOf(*buckets, {9, 9})].num_seqs, 12u);
  EXPECT_EQ((*buckets)[*GraphBucketOf(*buckets, {48, 1})].num_seqs, 12u);
}

TEST(GraphSizesTest, ErrorsNameTheFlag) {
  const auto message = [](GraphSizeOptions options) {
    return std::string(GraphBuckets(options).status().message());
  };
  EXPECT_THAT(message({.cuda_graph_sizes = {8, 4}}), HasSubstr("--cuda-graph-sizes: 4 follows 8"));
  EXPECT_THAT(message({.cuda_graph_sizes = {0}}), HasSubstr("--cuda-graph-sizes: 0"));
  EXPECT_THAT(message({.tokens_per_request = 4, .cuda_graph_sizes = {4, 6}}),
              HasSubstr("--cuda-graph-sizes: 6 is not a multiple of the 4"));
}

}  // namespace
}  // namespace flotilla::cuda
