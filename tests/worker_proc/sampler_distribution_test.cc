// Draws against the exact distribution of a setting, which is computed here by the definition, in
// double precision with a full sort, and shares no code with the sampler. Pearson's chi-square over
// 100,000 draws; seeds are fixed, so a result can't change from run to run.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla {
namespace {

constexpr uint32_t kDraws = 100'000;
constexpr double kLeastExpected = 10;  // draws a bin; rarer tokens share one
// A sampler without a fault fails a setting with this probability, once for all.
constexpr double kSignificance = 1e-4;

struct Setting {
  const char* name;
  size_t vocab = 24;
  float deviation = 1.5f;  // of the logits
  SamplingParams params = {};
  std::vector<LogitBias> logit_bias = {};
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
  std::vector<int32_t> eos_ids = {};
};

std::vector<float> LogitsOf(const Setting& setting) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, setting.deviation);
  std::vector<float> logits(setting.vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

double CountOf(const std::vector<int32_t>& ids, size_t token) {
  return static_cast<double>(std::count(ids.begin(), ids.end(), static_cast<int32_t>(token)));
}

std::vector<double> Normalised(std::vector<double> p) {
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> Exact(const Setting& s, const std::vector<float>& logits) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const LogitBias& entry : s.logit_bias) x[static_cast<size_t>(entry.token)] += entry.bias;
  for (size_t i = 0; i < x.size(); ++i) {
    const double in_output = CountOf(s.output, i);
    if (in_output + CountOf(s.prompt, i) > 0) {
      x[i] *= x[i] > 0 ? 1.0 / s.params.repetition_penalty : s.params.repetition_penalty;
    }
    x[i] -= s.params.frequency_penalty * in_output;
    if (in_output > 0) x[i] -= s.params.presence_penalty;
  }
  if (s.params.min_tokens_until > 0) {
    for (const int32_t id : s.eos_ids) x[static_cast<size_t>(id)] = -INFINITY;
  }
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> p(x.size());
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp((x[i] - max) / s.params.temperature);
    if (p[i] < s.params.min_p) p[i] = 0;
  }
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  for (size_t i = s.params.top_k > 0 ? s.params.top_k : p.size(); i < p.size(); ++i) {
    p[order[i]] = 0;
  }
  p = Normalised(p);
  double sum = 0;
  for (const size_t i : order) {
    const double before = sum;
    sum += p[i];
    if (before >= s.params.top_p) p[i] = 0;
  }
  return Normalised(p);
}

std::vector<uint32_t> Draw(const Setting& s, const std::vector<float>& logits) {
  const auto kernels = cpu::SelectSamplerKernels("auto");
  CHECK_OK(kernels.status());
  Sampler sampler(*kernels, s.eos_ids);
  TokenHistory history;
  history.Reset(static_cast<uint32_t>(s.prompt.size()));
  history.Append(s.prompt);
  history.Append(s.output);
  std::vector<float> row = logits;
  std::vector<uint32_t> seen(logits.size(), 0);
  for (uint32_t position = 0; position < kDraws; ++position) {
    const auto token = sampler.Sample(row,
                                      {.params = s.params,
                                       .position = position,
                                       .logit_bias = s.logit_bias,
                                       .counts = history.counts()},
                                      nullptr);
    CHECK_OK(token.status());
    ++seen[static_cast<size_t>(*token)];
  }
  return seen;
}

class SamplerDistributionTest : public ::testing::TestWithParam<Setting> {};

TEST_P(SamplerDistributionTest, ChiSquare) {
  Setting setting = GetParam();
  setting.params.seed = 20240607;
  if (setting.params.min_tokens_until > 0) setting.params.min_tokens_until = kDraws;
  const std::vector<float> logits = LogitsOf(setting);
  const std::vector<double> p = Exact(setting, logits);
  const std::vector<uint32_t> seen = Draw(setting, logits);
  double statistic = 0, rare_p = 0, rare_seen = 0;
  int bins = 0;
  const auto add_bin = [&](double share, double count) {
    const double expected = share * kDraws;
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      ASSERT_EQ(seen[i], 0u) << "token " << i << " was filtered";
    } else if (p[i] * kDraws >= kLeastExpected) {
      add_bin(p[i], seen[i]);
    } else {
      rare_p += p[i];
      rare_seen += seen[i];
      if (rare_p * kDraws < kLeastExpected) continue;
      add_bin(rare_p, rare_seen);
      rare_p = rare_seen = 0;
    }
  }
  if (rare_p > 0) add_bin(rare_p, rare_seen);
  ASSERT_GE(bins, 2);
  const boost::math::chi_squared distribution(bins - 1);
  const double p_value = boost::math::cdf(boost::math::complement(distribution, statistic));
  RecordProperty("p_value", std::to_string(p_value));
  EXPECT_GT(p_value, kSignificance) << "chi-square " << statistic << " over " << bins << " bins";
}

constexpr size_t kReal = 49152;

SamplingParams Params(float temperature, float top_p, uint32_t top_k, float min_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
  params.min_p = min_p;
  return params;
}

SamplingParams Penalties(SamplingParams params, float presence, float frequency, float repetition) {
  params.presence_penalty = presence;
  params.frequency_penalty = frequency;
  params.repetition_penalty = repetition;
  return params;
}

SamplingParams MinTokens(SamplingParams params) {
  params.min_tokens_until = 1;  // of the whole test
  return params;
}

INSTANTIATE_TEST_SUITE_P(
    Small, SamplerDistributionTest,
    ::testing::Values(
        Setting{.name = "plain", .params = Params(1, 1, 0, 0)},
        Setting{.name = "hot", .params = Params(2, 1, 0, 0)},
        Setting{.name = "cool", .params = Params(0.5f, 1, 0, 0)},
        Setting{.name = "top_k", .params = Params(1, 1, 5, 0)},
        Setting{.name = "top_p", .params = Params(1, 0.8f, 0, 0)},
        Setting{.name = "min_p", .params = Params(1, 1, 0, 0.2f)},
        Setting{.name = "top_k_top_p", .params = Params(0.8f, 0.9f, 7, 0)},
        Setting{.name = "all_filters", .params = Params(1.3f, 0.9f, 10, 0.05f)},
        Setting{.name = "presence",
                .params = Penalties(Params(1, 1, 0, 0), 1.5f, 0, 1),
                .prompt = {1, 2},
                .output = {3, 4, 4, 4}},
        Setting{.name = "frequency",
                .params = Penalties(Params(1, 1, 0, 0), 0, -0.4f, 1),
                .output = {3, 4, 4, 4, 20}},
        Setting{.name = "repetition",
                .params = Penalties(Params(1, 1, 0, 0), 0, 0, 1.7f),
                .prompt = {1, 2, 5, 9},
                .output = {3, 4, 4}},
        Setting{.name = "bias",
                .params = Params(1, 1, 0, 0),
                .logit_bias = {{0, 1.5f}, {4, -2}, {7, -100}, {23, 3}}},
        Setting{.name = "min_tokens", .params = MinTokens(Params(1, 1, 0, 0)), .eos_ids = {2, 17}},
        Setting{.name = "everything",
                .params = MinTokens(Penalties(Params(0.9f, 0.95f, 15, 0.01f), 0.3f, 0.2f, 1.2f)),
                .logit_bias = {{1, 2}, {11, -1}},
                .prompt = {0, 5, 5, 6},
                .output = {8, 1, 8},
                .eos_ids = {3}}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    RealVocabulary, SamplerDistributionTest,
    ::testing::Values(
        Setting{.name = "plain", .vocab = kReal, .deviation = 3, .params = Params(1, 1, 0, 0)},
        Setting{.name = "hot", .vocab = kReal, .deviation = 3, .params = Params(1.6f, 1, 0, 0)},
        Setting{.name = "top_p", .vocab = kReal, .deviation = 4, .params = Params(1, 0.9f, 0, 0)},
        Setting{.name = "top_p_cool",
                .vocab = kReal,
                .deviation = 4,
                .params = Params(0.7f, 0.95f, 0, 0)},
        Setting{.name = "top_k", .vocab = kReal, .deviation = 2, .params = Params(1, 1, 40, 0)},
        Setting{
            .name = "top_k_many", .vocab = kReal, .deviation = 2, .params = Params(1, 1, 1000, 0)},
        Setting{.name = "min_p", .vocab = kReal, .deviation = 3, .params = Params(1, 1, 0, 0.05f)},
        Setting{.name = "everything",
                .vocab = kReal,
                .deviation = 4,
                .params = MinTokens(Penalties(Params(0.9f, 0.95f, 200, 0.001f), 0.3f, 0.2f, 1.2f)),
                .logit_bias = {{100, 15}, {40000, 14}},
                .prompt = {100, 5, 49151, 6},
                .output = {8, 100, 8},
                .eos_ids = {2, 0}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flotilla
