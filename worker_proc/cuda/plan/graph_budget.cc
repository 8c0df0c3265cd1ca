#include "worker_proc/cuda/plan/graph_budget.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

// Of the document's second formula.
constexpr int64_t kTasksAGroup = 40;

}  // namespace

uint32_t MaxGraphs(const GraphResources& resources) {
  int64_t a_graph = int64_t{resources.num_layers} + 1;
  if (resources.draft_layers > 0) a_graph += int64_t{resources.draft_layers} + 1;
  const int64_t groups = resources.comm_groups;
  int64_t most = resources.max_resources;
  int64_t factor = 0;
  if (resources.comm == CommExpansion::kKernels) {
    factor = 1 + groups;
    if (resources.dense_collectives) most -= factor * a_graph;
  } else {
    factor = 1 + groups * 2;
    most -= groups * kTasksAGroup;
  }
  return most > 0 ? static_cast<uint32_t>(most / a_graph / factor) : 0;
}

uint32_t GraphsLeft(const GraphLimits& limits, uint32_t done, const GraphCosts& spent,
                    const GraphCosts& each) {
  uint64_t left = limits.max_graphs > done ? limits.max_graphs - done : 0;
  if (each.bytes > 0) {
    const uint64_t room = limits.max_bytes > spent.bytes ? limits.max_bytes - spent.bytes : 0;
    left = std::min(left, room / each.bytes);
  }
  if (each.ns > 0) {
    const int64_t room = std::max<int64_t>(0, limits.max_ns - spent.ns);
    left = std::min(left, static_cast<uint64_t>(room / each.ns));
  }
  return static_cast<uint32_t>(left);
}

std::vector<PlanShape> Resample(std::span<const PlanShape> buckets, uint32_t count) {
  if (count >= buckets.size()) return {buckets.begin(), buckets.end()};
  if (count == 0) return {};
  std::vector<PlanShape> kept, others;
  const auto keep_first = [&](const PlanShape& bucket) {
    const uint32_t size = bucket.num_seqs;
    return size == 1 || size == 2 || size == 4 || size == 8;
  };
  for (const PlanShape& bucket : buckets.first(buckets.size() - 1)) {
    const bool keep = keep_first(bucket) && kept.size() + 1 < count;
    (keep ? kept : others).push_back(bucket);
  }
  // Spread so that the last step is as wide as the others: the largest bucket ends it.
  const size_t wanted = count - 1 - kept.size();
  for (size_t i = 0; i < wanted; ++i) {
    kept.push_back(others[(i + 1) * (others.size() + 1) / (wanted + 1) - 1]);
  }
  kept.push_back(buckets.back());
  std::sort(kept.begin(), kept.end(),
            [](const PlanShape& a, const PlanShape& b) { return a.num_seqs < b.num_seqs; });
  CHECK(kept.size() == count);
  return kept;
}

}  // namespace flotilla::cuda
