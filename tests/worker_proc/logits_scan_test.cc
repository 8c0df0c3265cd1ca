#include "worker_proc/runner/logits_scan.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/worker_proc/sampler_cases.h"

namespace flotilla {
namespace {

using testing::AdversarialRows;
using testing::ByLikelihood;
using testing::NamedRow;

TEST(LogitsScanTest, AnswersAsAFullSortWould) {
  for (const SamplerKernels* kernels : testing::SamplerTables()) {
    LogitsScan scan(kernels);
    for (const NamedRow& row : AdversarialRows()) {
      SCOPED_TRACE(::testing::Message() << row.name << " of " << row.logits.size());
      ASSERT_TRUE(scan.Reset(row.logits).ok());
      const size_t n = row.logits.size();
      const std::vector<size_t> order = ByLikelihood(row.logits);
      EXPECT_EQ(scan.max(), row.logits[order[0]]);
      EXPECT_EQ(scan.ArgMax(), static_cast<int32_t>(order[0]));
      for (size_t rank = 0; rank < n; rank += 1 + rank / 2) {
        EXPECT_EQ(scan.Rank(static_cast<int32_t>(order[rank])), rank + 1);
      }
      for (const size_t k : {size_t{1}, size_t{3}, size_t{20}, n / 2, n - 1, n, n + 1}) {
        if (k == 0) continue;
        const float bound = scan.BoundOfTop(static_cast<uint32_t>(k));
        Candidates candidates;
        scan.Collect(bound, &candidates);
        EXPECT_GE(candidates.size(), std::min(k, n)) << k;
        // Exactly those that reach the bound.
        size_t reach = 0;
        for (const float x : row.logits) reach += x >= bound;
        EXPECT_EQ(candidates.size(), reach);
        for (const int32_t token : candidates.tokens()) {
          EXPECT_GE(row.logits[static_cast<size_t>(token)], bound);
        }
      }
    }
  }
}

TEST(LogitsScanTest, TheBoundOfTheTopIsClose) {
  const std::vector<float> row = testing::RandomLogits(49152, 4, 3);
  LogitsScan scan(testing::SamplerTables().front());
  ASSERT_TRUE(scan.Reset(row).ok());
  for (const uint32_t k : {1u, 40u, 150u, 200u, 1000u, 7000u, 20000u}) {
    Candidates candidates;
    scan.Collect(scan.BoundOfTop(k), &candidates);
    EXPECT_LE(candidates.size(), 2 * k + 50) << k;
  }
}

TEST(LogitsScanTest, ADrawOverAllLogitsWalksTheirWeights) {
  for (const NamedRow& row : AdversarialRows()) {
    LogitsScan scan(testing::SamplerTables().front());
    ASSERT_TRUE(scan.Reset(row.logits).ok());
    for (const float inverse : {1.0f, 0.6f}) {
      const double total = scan.TotalWeight(inverse);
      std::vector<float> weights(row.logits.size());
      cpu::ReferenceSamplerKernels().weights(row.logits.data(), weights.size(), scan.Scale(inverse),
                                             weights.data());
      ASSERT_EQ(total, std::accumulate(weights.begin(), weights.end(), 0.0));
      for (const double share : {0.0, 0.2, 0.5, 0.77, 1 - 0x1p-53}) {
        const double target = share * total;
        double sum = weights[0];
        size_t i = 0;
        while (sum <= target) sum += weights[++i];
        EXPECT_EQ(scan.Draw(target), static_cast<int32_t>(i)) << row.name << " " << share;
      }
    }
  }
}

TEST(LogitsScanTest, TheQuantumKeepsSumsExactForAnyVocabulary) {
  LogitsScan scan(testing::SamplerTables().front());
  for (const size_t n :
       {size_t{1}, size_t{49152}, size_t{131072}, size_t{131073}, size_t{300000}}) {
    const std::vector<float> row(n, 1.0f);
    ASSERT_TRUE(scan.Reset(row).ok());
    const double quantum = scan.Scale(1).quantum;
    EXPECT_LE(static_cast<double>(n) / quantum, 0x1p53) << n;
    EXPECT_EQ(quantum, n <= 131072 ? 0x1p-36 : n <= 262144 ? 0x1p-35 : 0x1p-34);
    EXPECT_EQ(scan.TotalWeight(1), static_cast<double>(n));
  }
}

TEST(LogitsScanTest, WhatIsNotFiniteIsAnError) {
  const float inf = std::numeric_limits<float>::infinity();
  LogitsScan scan(testing::SamplerTables().front());
  EXPECT_EQ(scan.Reset(std::vector<float>{1, inf}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(scan.Reset(std::vector<float>{1, std::nanf("")}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(scan.Reset(std::vector<float>{-inf, -inf}).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(scan.Reset(std::vector<float>{-inf, 1}).ok());
}

}  // namespace
}  // namespace flotilla
