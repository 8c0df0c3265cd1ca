// Rows of logits that a sampler may stumble over, and a sampler by the definition: dense, with a
// full sort, to be read. Tests only.
//
// The naive sampler takes the weights of all logits from the reference kernels, so that the fast
// one must choose the same token bit for bit. Threads: any. Errors: none.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "shm/step_plan.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cpu/sampler_kernels.h"
#include "worker_proc/runner/philox.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla::testing {

// Of all instruction sets that this machine has.
inline std::vector<const SamplerKernels*> SamplerTables() {
  std::vector<const SamplerKernels*> tables;
  for (const std::string& isa : cpu::SupportedIsas()) {
    const auto table = cpu::SelectSamplerKernels(isa);
    CHECK_OK(table.status());
    if (tables.empty() || tables.back() != *table) tables.push_back(*table);  // AMX has AVX-512's
  }
  return tables;
}

inline std::vector<float> RandomLogits(size_t n, uint64_t seed, float deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

struct NamedRow {
  const char* name;
  std::vector<float> logits;
};

inline std::vector<NamedRow> AdversarialRows() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<NamedRow> rows;
  for (const size_t n : {1u, 2u, 15u, 16u, 17u, 255u, 256u, 257u, 1000u, 5003u}) {
    const std::vector<float> random = RandomLogits(n, n, 3);
    const auto add = [&](const char* name, auto&& make) {
      NamedRow& row = rows.emplace_back(NamedRow{name, random});
      for (size_t i = 0; i < n; ++i) row.logits[i] = make(i);
    };
    add("random", [&](size_t i) { return random[i]; });
    add("flat", [&](size_t i) { return random[i] * 0.01f; });
    add("steep", [&](size_t i) { return random[i] * 30; });
    add("all equal", [](size_t) { return -2.5f; });
    add("few values", [&](size_t i) { return std::floor(random[i]); });
    add("mostly -inf", [&](size_t i) { return i % 7 == 0 ? random[i] : -kInf; });
    add("one finite", [&](size_t i) { return i == n / 2 ? 3.0f : -kInf; });
    add("one huge", [&](size_t i) { return i == n / 3 ? 3e38f : random[i]; });
    add("both ends", [&](size_t i) { return i % 2 == 0 ? -3e38f : 3e38f; });
    add("denormals", [](size_t i) { return static_cast<float>(i % 5) * 1e-45f; });
    add("zeros of both signs", [](size_t i) { return i % 3 == 0 ? -0.0f : 0.0f; });
    add("rising", [](size_t i) { return static_cast<float>(i) * 0.01f; });
    add("falling", [](size_t i) { return static_cast<float>(i) * -0.01f; });
  }
  return rows;
}

// What is sampled, told by the tokens of the sequence themselves.
struct NaiveInput {
  SamplingParams params;
  uint32_t position = 0;
  std::vector<LogitBias> logit_bias = {};
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
  std::vector<int32_t> eos_ids = {};
  std::vector<int32_t> stop_ids = {};
};

// Mask, bias and penalties, as vLLM defines them.
inline std::vector<float> NaiveAdjusted(std::vector<float> logits, const NaiveInput& input) {
  const SamplingParams& p = input.params;
  if (input.position < p.min_tokens_until) {
    for (const int32_t id : input.eos_ids) logits[static_cast<size_t>(id)] = -INFINITY;
    for (const int32_t id : input.stop_ids) logits[static_cast<size_t>(id)] = -INFINITY;
  }
  for (const LogitBias& entry : input.logit_bias) {
    logits[static_cast<size_t>(entry.token)] += entry.bias;
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    const auto in_prompt = std::count(input.prompt.begin(), input.prompt.end(), token);
    const auto in_output = std::count(input.output.begin(), input.output.end(), token);
    if (in_prompt + in_output > 0) {
      logits[i] =
          logits[i] > 0 ? logits[i] / p.repetition_penalty : logits[i] * p.repetition_penalty;
    }
    logits[i] -= p.frequency_penalty * static_cast<float>(in_output);
    logits[i] -= in_output > 0 ? p.presence_penalty : 0;
  }
  return logits;
}

// Indices by falling logit, the lower id first among equals.
inline std::vector<size_t> ByLikelihood(const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

inline int32_t NaiveSample(const std::vector<float>& row, const NaiveInput& input) {
  const SamplingParams& p = input.params;
  const std::vector<float> logits = NaiveAdjusted(row, input);
  const std::vector<size_t> order = ByLikelihood(logits);
  if (p.temperature < 1e-5f) return static_cast<int32_t>(order[0]);
  std::vector<float> weights(logits.size());
  cpu::ReferenceSamplerKernels().weights(logits.data(), logits.size(),
                                         {logits[order[0]], 1.0f / p.temperature, 0x1p-36f},
                                         weights.data());
  const auto total = [&] { return std::accumulate(weights.begin(), weights.end(), 0.0); };
  std::vector<bool> kept(logits.size(), true);
  const auto drop = [&](size_t i) {
    kept[i] = false;
    weights[i] = 0;
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= p.min_p)) drop(i);
  }
  for (size_t i = 0, left = p.top_k; i < order.size() && p.top_k > 0; ++i) {
    if (!kept[order[i]]) continue;
    left > 0 ? static_cast<void>(--left) : drop(order[i]);
  }
  if (p.top_p < 1) {
    const double need = p.top_p * total();
    double sum = 0;
    for (const size_t i : order) {
      const double before = sum;
      sum += weights[i];
      if (before >= need) drop(i);
    }
  }
  const double target = UniformDraw(p.seed, input.position, 0) * total();
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > target) return static_cast<int32_t>(i);
  }
  return -1;
}

// As Sampler::Logprobs, of a row that has some.
inline PositionLogprobs LogprobsOf(Sampler* sampler, std::span<const float> logits, int32_t token,
                                   uint32_t n) {
  PositionLogprobs logprobs;
  CHECK_OK(sampler->Logprobs(logits, token, n, &logprobs));
  return logprobs;
}

}  // namespace flotilla::testing
