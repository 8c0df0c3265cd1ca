// Requirement 002's own figures, and what the bounds leave of a list of sizes.
#include "worker_proc/cuda/plan/graph_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "worker_proc/cuda/plan/graph_sizes.h"

namespace flotilla::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 48 layers, tensor parallel 4: one group of ranks.
GraphResources Example(uint32_t max_resources, CommExpansion comm, bool dense) {
  return {.max_resources = max_resources,
          .num_layers = 48,
          .comm_groups = 1,
          .comm = comm,
          .dense_collectives = dense};
}

TEST(GraphBudgetTest, TheDocumentsExamples) {
  EXPECT_EQ(MaxGraphs(Example(1920, CommExpansion::kKernels, false)), 19u);
  EXPECT_EQ(MaxGraphs(Example(1920, CommExpansion::kKernels, true)), 18u);
  EXPECT_EQ(MaxGraphs(Example(1920, CommExpansion::kTasks, true)), 12u);
  EXPECT_EQ(kMaxGraphResources, 1800u);
  EXPECT_EQ(MaxGraphs({.num_layers = 48, .comm_groups = 1}), 17u);  // (1800 - 98) / 49 / 2
}

TEST(GraphBudgetTest, LayersGroupsAndADraftModelTakeTheirShare) {
  const GraphResources one_rank = {.num_layers = 28};
  EXPECT_EQ(MaxGraphs(one_rank), 61u);  // (1800 - 29) / 29
  GraphResources more = one_rank;
  more.draft_layers = 1;
  EXPECT_EQ(MaxGraphs(more), 57u);  // 31 a graph
  more.comm_groups = 2;
  EXPECT_EQ(MaxGraphs(more), 18u);  // (1800 - 93) / 31 / 3
  EXPECT_EQ(MaxGraphs({.max_resources = 40, .num_layers = 48}), 0u);
}

TEST(GraphBudgetTest, BytesAndTimeAreTheSecondBound) {
  const GraphLimits limits{.max_graphs = 20, .max_bytes = 1000, .max_ns = 5000};
  EXPECT_EQ(GraphsLeft(limits, 1, {100, 100}, {10, 10}), 19u);
  EXPECT_EQ(GraphsLeft(limits, 1, {100, 100}, {100, 10}), 9u);
  EXPECT_EQ(GraphsLeft(limits, 1, {100, 1000}, {100, 1000}), 4u);
  EXPECT_EQ(GraphsLeft(limits, 1, {2000, 100}, {100, 10}), 0u);
  EXPECT_EQ(GraphsLeft(limits, 25, {0, 0}, {0, 0}), 0u);
  EXPECT_EQ(GraphsLeft({}, 1, {1 << 30, kMaxGraphResources}, {0, 0}), 1799u);
}

std::vector<uint32_t> Sizes(const std::vector<PlanShape>& buckets) {
  std::vector<uint32_t> sizes;
  for (const PlanShape& bucket : buckets) sizes.push_back(bucket.num_seqs);
  return sizes;
}

TEST(GraphBudgetTest, ResamplingKeepsTheSmallAndTheLargest) {
  const auto all = *GraphBuckets({.max_running_requests = 64});
  EXPECT_EQ(Sizes(Resample(all, 12)), Sizes(all));
  EXPECT_EQ(Sizes(Resample(all, 99)), Sizes(all));
  EXPECT_THAT(Sizes(Resample(all, 7)), ElementsAre(1, 2, 4, 8, 16, 40, 64));
  EXPECT_THAT(Sizes(Resample(all, 5)), ElementsAre(1, 2, 4, 8, 64));
  EXPECT_THAT(Sizes(Resample(all, 3)), ElementsAre(1, 2, 64));
  EXPECT_THAT(Sizes(Resample(all, 1)), ElementsAre(64));
  EXPECT_THAT(Resample(all, 0), IsEmpty());
}

TEST(GraphBudgetTest, ResampledSizesRiseAndAreOfTheList) {
  for (const uint32_t most : {1u, 5u, 16u, 100u, 512u}) {
    const auto all = *GraphBuckets({.max_running_requests = most});
    const auto known = Sizes(all);
    for (uint32_t count = 0; count <= all.size() + 1; ++count) {
      const auto kept = Sizes(Resample(all, count));
      ASSERT_EQ(kept.size(), std::min<size_t>(count, all.size()));
      const std::set<uint32_t> unique(kept.begin(), kept.end());
      EXPECT_EQ(unique.size(), kept.size());
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      for (const uint32_t size : kept) EXPECT_THAT(known, ::testing::Contains(size));
      if (count > 0) {
        EXPECT_EQ(kept.back(), most);
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::cuda
