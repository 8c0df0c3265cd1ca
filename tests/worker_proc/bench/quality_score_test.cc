#include "worker_proc/bench/quality_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace flotilla::bench {
namespace {

std::vector<float> Logits(size_t n, uint32_t seed, float scale = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

// The definition, term by term.
std::vector<long double> Softmax(const std::vector<float>& logits) {
  long double sum = 0;
  std::vector<long double> p;
  for (const float x : logits) sum += p.emplace_back(expl(x));
  for (long double& x : p) x /= sum;
  return p;
}

TEST(QualityScoreTest, IsTheDefinitionsKlAndLoss) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto reference = Logits(1000, seed);
    auto logits = reference;
    const auto noise = Logits(1000, seed + 100, seed < 10 ? 1e-3f : 1.0f);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] += noise[i] + 20;
    const auto p = Softmax(reference), q = Softmax(logits);
    long double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) kl += p[i] * logl(p[i] / q[i]);
    const auto score = ScorePosition(reference, logits, 17);
    ASSERT_TRUE(score.ok());
    EXPECT_NEAR(score->kl, kl, 1e-12 + 1e-9 * kl);
    EXPECT_NEAR(score->nll, -logl(q[17]), 1e-12);
  }
}

TEST(QualityScoreTest, EqualLogitsHaveNoDivergence) {
  const auto logits = Logits(50000, 1);
  const auto score = ScorePosition(logits, logits, -1);
  ASSERT_TRUE(score.ok());
  EXPECT_EQ(score->kl, 0);
  EXPECT_TRUE(score->same_top1);
  EXPECT_FALSE(score->has_next);
}

TEST(QualityScoreTest, MarginAndTopAreTheReferences) {
  const std::vector<float> reference = {1, 4, 2, 3.25f};
  const auto other = ScorePosition(reference, std::vector<float>{0, 1, 2, 0}, 0);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->same_top1);
  EXPECT_EQ(other->margin, 0.75);
  // Of equals the lowest id is the top, as greedy sampling has it.
  const std::vector<float> even = {1, 4, 4, 2};
  EXPECT_TRUE(ScorePosition(even, std::vector<float>{0, 2, 1, 1}, 0)->same_top1);
  EXPECT_FALSE(ScorePosition(even, std::vector<float>{0, 1, 2, 1}, 0)->same_top1);
  EXPECT_EQ(ScorePosition(even, even, 0)->margin, 0);
}

TEST(QualityScoreTest, WhatIsNotFiniteIsAnError) {
  auto logits = Logits(10, 1);
  const auto reference = logits;
  for (const float bad : {NAN, INFINITY}) {
    logits[3] = bad;
    EXPECT_EQ(ScorePosition(reference, logits, 0).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(ScorePosition(logits, reference, 0).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(QualityScoreTest, SumsUpPositions) {
  QualityScore score;
  score.Add({.kl = 0.5, .margin = 1, .same_top1 = true, .has_next = true, .nll = 2});
  score.Add({.kl = 0.1, .margin = 0.5, .same_top1 = false, .has_next = true, .nll = 1});
  score.Add({.kl = 0.3, .margin = 0.6, .same_top1 = false, .has_next = false, .nll = 0});
  EXPECT_EQ(score.positions, 3u);
  EXPECT_EQ(score.same_top1, 1u);
  EXPECT_EQ(score.decided, 2u) << "a margin of exactly 0.5 decides nothing";
  EXPECT_EQ(score.decided_same_top1, 1u);
  EXPECT_NEAR(score.mean_kl(), 0.3, 1e-15);
  EXPECT_EQ(score.max_kl, 0.5);
  EXPECT_NEAR(score.perplexity(), std::exp(1.5), 1e-14) << "of those that have a next token";
}

}  // namespace
}  // namespace flotilla::bench
