#include "worker_proc/runner/candidates.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/worker_proc/sampler_cases.h"

namespace flotilla {
namespace {

using testing::AdversarialRows;
using testing::ByLikelihood;
using testing::NamedRow;

const SamplerKernels& Kernels() { return *testing::SamplerTables().front(); }

// All logits of a row, in three pieces, with weights.
Candidates AllOf(const std::vector<float>& row) {
  Candidates all;
  const std::span<const float> logits = row;
  const size_t cuts[] = {0, row.size() / 3, row.size() / 2, row.size()};
  for (int i = 0; i < 3; ++i) {
    all.Collect(Kernels(), logits.subspan(cuts[i], cuts[i + 1] - cuts[i]),
                -std::numeric_limits<float>::infinity(), static_cast<int32_t>(cuts[i]));
  }
  all.SetWeights(Kernels(), {*std::max_element(row.begin(), row.end()), 1, 0x1p-36f});
  return all;
}

std::vector<size_t> Kept(const Candidates& candidates) {
  return {candidates.tokens().begin(), candidates.tokens().end()};
}

// The first `n` of the order, by id.
std::vector<size_t> FirstById(std::vector<size_t> order, size_t n) {
  order.resize(std::min(n, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(LikelihoodKeyTest, OrdersByLogitThenId) {
  const float inf = std::numeric_limits<float>::infinity();
  const float falling[] = {inf, 3e38f, 1.5f, 1e-45f, 0, -1e-45f, -1.5f, -3e38f, -inf};
  for (size_t i = 0; i + 1 < std::size(falling); ++i) {
    EXPECT_LT(LikelihoodKey(falling[i], 900), LikelihoodKey(falling[i + 1], 3));
    EXPECT_LT(LikelihoodKey(falling[i], 3), LikelihoodKey(falling[i], 900));
  }
  EXPECT_EQ(LikelihoodKey(-0.0f, 5), LikelihoodKey(0.0f, 5));
}

TEST(CandidatesTest, TopKIsTheHeadOfAFullSort) {
  for (const NamedRow& row : AdversarialRows()) {
    const std::vector<size_t> order = ByLikelihood(row.logits);
    for (const size_t k : {size_t{1}, size_t{2}, size_t{40}, row.logits.size() / 2 + 1,
                           row.logits.size(), row.logits.size() + 7}) {
      Candidates candidates = AllOf(row.logits);
      const std::span<const uint32_t> best = candidates.MostLikely(static_cast<uint32_t>(k));
      ASSERT_EQ(best.size(), std::min(k, order.size()));
      for (size_t i = 0; i < best.size(); ++i) ASSERT_EQ(best[i], order[i]) << row.name;
      candidates.KeepTopK(static_cast<uint32_t>(k));
      ASSERT_EQ(Kept(candidates), FirstById(order, k)) << row.name << ", k " << k;
    }
  }
}

TEST(CandidatesTest, MassIsTheShortestHeadOfAFullSortThatHoldsIt) {
  for (const NamedRow& row : AdversarialRows()) {
    const std::vector<size_t> order = ByLikelihood(row.logits);
    std::vector<float> weights(row.logits.size());
    Kernels().weights(row.logits.data(), weights.size(), {row.logits[order[0]], 1, 0x1p-36f},
                      weights.data());
    const double total = AllOf(row.logits).TotalWeight();
    for (const double share : {1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0}) {
      Candidates candidates = AllOf(row.logits);
      candidates.KeepMass(share * total);
      double sum = 0;
      size_t n = 0;
      while (n < order.size() && sum < share * total) sum += weights[order[n++]];
      ASSERT_EQ(Kept(candidates), FirstById(order, n)) << row.name << ", share " << share;
      EXPECT_EQ(candidates.TotalWeight(), sum);
    }
    Candidates candidates = AllOf(row.logits);
    candidates.KeepMass(total + 1);
    EXPECT_EQ(candidates.size(), row.logits.size()) << "all, if they weigh less";
  }
}

TEST(CandidatesTest, ADrawFindsTheTokenWhereTheRunningSumPassesTheTarget) {
  Candidates candidates = AllOf({0, -1, -100, 0, -0.5f});  // the third weighs nothing
  const double second = std::exp(-1.0);
  EXPECT_EQ(candidates.Draw(0), 0);
  EXPECT_EQ(candidates.Draw(0.999999), 0);
  EXPECT_EQ(candidates.Draw(1), 1);
  EXPECT_EQ(candidates.Draw(1 + second + 1e-6), 3);
  EXPECT_EQ(candidates.Draw(2 + second + 1e-6), 4);
  EXPECT_EQ(candidates.Draw(std::nextafter(candidates.TotalWeight(), 0)), 4);
  candidates.KeepWeightAtLeast(0.5f);
  EXPECT_EQ(Kept(candidates), (std::vector<size_t>{0, 3, 4}));
  EXPECT_EQ(candidates.Draw(1), 3);
}

}  // namespace
}  // namespace flotilla
