#include "worker_proc/runner/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "worker_proc/runner/philox.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

// The known-answer vectors published with Random123.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(PhiloxTest, DrawsAreInRangeAndDependOnSeedPositionAndDraw) {
  double sum = 0;
  for (uint32_t p = 0; p < 10000; ++p) {
    const double u = UniformDraw(1, p, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_EQ(UniformDraw(1, 2, 3), UniformDraw(1, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(2, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(uint64_t{1} | uint64_t{1} << 32, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(1, 3, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(1, 2, 4));
}

TEST(DeterministicExpTest, MatchesLibm) {
  for (float x = -86.5f; x <= 0; x += 0.0011f) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(DeterministicExp(x), exact, 4e-7 * exact) << x;
  }
}

std::vector<float> Logits(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(rng);
  return logits;
}

TEST(LogSumExpTest, MatchesDoubleForAnySize) {
  for (size_t n : {1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 49152u}) {
    const auto logits = Logits(n, n);
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x));
    EXPECT_NEAR(LogSumExp(logits), std::log(sum), 1e-6) << n;
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler({});
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(*sampler.Sample(std::vector<float>{1, 5, 2, 5, 5}, params, 0), 1);
  EXPECT_EQ(*sampler.Sample(std::vector<float>{-3, -1, -1}, params, 0), 1);
}

TEST(SamplerTest, MinTokensMasksEosUntilItsPosition) {
  Sampler sampler({2, 1});
  SamplingParams params;
  params.min_tokens_until = 10;
  const std::vector<float> logits = {1, 30, 40, 2};
  for (float temperature : {0.0f, 1.0f, 0.01f}) {
    params.temperature = temperature;
    for (uint32_t position = 0; position < 10; ++position) {
      const int32_t token = *sampler.Sample(logits, params, position);
      EXPECT_TRUE(token == 0 || token == 3) << token;
    }
    EXPECT_EQ(*sampler.Sample(logits, params, 10), 2);
  }
}

TEST(SamplerTest, LogitsThatAreNotFiniteAreAnError) {
  Sampler sampler({});
  SamplingParams params;
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.Sample(std::vector<float>{nan, nan}, params, 0).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, inf}, params, 0).ok());
  EXPECT_FALSE(sampler.Logprobs(std::vector<float>{1, nan}, 0, 1).ok());
  EXPECT_TRUE(sampler.Sample(std::vector<float>{1, -inf}, params, 0).ok());
}

// The exact distribution of a setting, by the definition.
std::vector<double> Exact(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / params.temperature);
  }
  const auto normalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
  };
  for (double& x : p) x = x >= params.min_p * 1.0 ? x : 0;  // relative to the largest, which is 1
  if (params.top_k > 0) {
    for (size_t i = params.top_k; i < order.size(); ++i) p[order[i]] = 0;
  }
  normalise();
  double sum = 0;
  for (size_t i : order) {
    if (sum >= params.top_p) p[i] = 0;
    sum += p[i];
  }
  normalise();
  return p;
}

struct Setting {
  const char* name;
  float temperature, top_p, min_p;
  uint32_t top_k;
};

class DistributionTest : public ::testing::TestWithParam<Setting> {};

TEST_P(DistributionTest, ChiSquareOverManyPositions) {
  constexpr size_t kVocab = 24;
  constexpr uint32_t kDraws = 100'000;
  const std::vector<float> logits = [] {
    std::vector<float> l = Logits(kVocab, 3);
    for (float& x : l) x *= 0.5f;
    return l;
  }();
  SamplingParams params;
  params.temperature = GetParam().temperature;
  params.top_p = GetParam().top_p;
  params.min_p = GetParam().min_p;
  params.top_k = GetParam().top_k;
  params.seed = 12345;
  Sampler sampler({});
  std::vector<uint32_t> seen(kVocab, 0);
  for (uint32_t position = 0; position < kDraws; ++position) {
    ++seen[static_cast<size_t>(*sampler.Sample(logits, params, position))];
  }
  const std::vector<double> p = Exact(logits, params);
  double chi = 0;
  int degrees = -1;
  for (size_t i = 0; i < kVocab; ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0u) << "token " << i << " was filtered";
      continue;
    }
    const double expected = p[i] * kDraws;
    chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    ++degrees;
  }
  // Mean and 4.5 deviations of the chi-square distribution: one in 100,000 at this fixed seed.
  EXPECT_LT(chi, degrees + 4.5 * std::sqrt(2.0 * std::max(degrees, 1)) + 6);
  EXPECT_GE(degrees, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, DistributionTest,
    ::testing::Values(Setting{"plain", 1, 1, 0, 0}, Setting{"hot", 2.5f, 1, 0, 0},
                      Setting{"cool", 0.5f, 1, 0, 0}, Setting{"top_k", 1, 1, 0, 5},
                      Setting{"top_p", 1, 0.8f, 0, 0}, Setting{"min_p", 1, 1, 0.2f, 0},
                      Setting{"all", 1.3f, 0.9f, 0.05f, 10}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SamplerTest, ADrawDependsOnSeedAndPositionOnly) {
  const auto logits = Logits(1000, 9);
  SamplingParams params;
  params.seed = 7;
  params.top_p = 0.9f;
  Sampler one({});
  Sampler other({});
  std::vector<int32_t> first;
  for (uint32_t p = 0; p < 200; ++p) first.push_back(*one.Sample(logits, params, p));
  for (uint32_t p = 200; p-- > 0;) {
    (void)*other.Sample(Logits(50, p), SamplingParams{}, p);  // someone else's row in between
    EXPECT_EQ(*other.Sample(logits, params, p), first[p]);
  }
  params.seed = 8;
  std::vector<int32_t> second;
  for (uint32_t p = 0; p < 200; ++p) second.push_back(*one.Sample(logits, params, p));
  EXPECT_NE(first, second);
}

TEST(LogprobsTest, RankTopAndTies) {
  Sampler sampler({});
  const std::vector<float> logits = {0, 2, 1, 2, -1};
  const auto logprobs = sampler.Logprobs(logits, 3, 3);
  ASSERT_TRUE(logprobs.ok());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  EXPECT_NEAR(logprobs->logprob, 2 - std::log(sum), 1e-6);
  EXPECT_EQ(logprobs->token, 3);
  EXPECT_EQ(logprobs->rank, 2u);  // token 1 has the same logit and a lower id
  ASSERT_EQ(logprobs->top.size(), 3u);
  EXPECT_EQ(logprobs->top[0].token, 1);
  EXPECT_EQ(logprobs->top[1].token, 3);
  EXPECT_EQ(logprobs->top[2].token, 2);
  EXPECT_EQ(logprobs->top[1].logprob, logprobs->logprob);
  EXPECT_EQ(sampler.Logprobs(logits, 4, 0)->rank, 5u);
  EXPECT_TRUE(sampler.Logprobs(logits, 4, 0)->top.empty());
}

TEST(LogprobsTest, TopTwentyOfManyIsTheSortedHead) {
  Sampler sampler({});
  const auto logits = Logits(5000, 11);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  const auto result = sampler.Logprobs(logits, 0, 20);
  ASSERT_EQ(result->top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(result->top[i].token)], sorted[i]);
  }
}

}  // namespace
}  // namespace flotilla
