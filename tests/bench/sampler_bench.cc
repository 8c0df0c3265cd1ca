// µs a token of the sampler at SmolLM2's vocabulary, for each instruction set, beside the limit:
// reading the row once, from the cache where the head has left it and from memory.
//
// Rows: 32, as a step of 32 requests leaves them. "peaked" is like a language model's (a few tokens
// hold most of the probability), "flat" the worst case (thousands of tokens in the nucleus).
// Run: build/release/bench/sampler_bench [--benchmark_filter=avx2]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla {
namespace {

constexpr size_t kVocab = 49152;
constexpr size_t kRows = 32;
constexpr size_t kRowsInMemory = 512;  // 96 MiB: more than the last cache holds

using Rows = std::vector<std::vector<float>>;

Rows MakeRows(bool peaked) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, peaked ? 2.5f : 1.0f);
  Rows rows(kRows, std::vector<float>(kVocab));
  for (std::vector<float>& row : rows) {
    for (float& x : row) x = normal(random);
    if (!peaked) continue;
    // Some hundred candidates above the rest, ever less likely.
    for (int i = 0; i < 300; ++i) {
      row[random() % kVocab] =
          18.0f - 1.6f * std::log2(1.0f + static_cast<float>(i)) + normal(random) / 4;
    }
  }
  return rows;
}

// Reads a row with 16 independent sums: as fast as the machine reads.
float ReadOnce(const std::vector<float>& row) {
  float lanes[16] = {};
  for (size_t i = 0; i < row.size(); i += 16) {
    for (size_t l = 0; l < 16; ++l) lanes[l] += row[i + l];
  }
  return *std::max_element(lanes, lanes + 16);
}

void ReadRow(benchmark::State& state, size_t rows) {
  const Rows data(rows, std::vector<float>(kVocab, 1.0f));
  size_t i = 0;
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(ReadOnce(data[i++ % rows]));
}

struct Setting {
  const char* name;
  std::function<void(SamplingParams*)> set;
};

const Setting kSettings[] = {
    {"greedy", [](SamplingParams* p) { p->temperature = 0; }},
    {"plain", [](SamplingParams*) {}},
    {"temp0.7", [](SamplingParams* p) { p->temperature = 0.7f; }},
    {"top_p0.9", [](SamplingParams* p) { p->top_p = 0.9f; }},
    {"top_k40", [](SamplingParams* p) { p->top_k = 40; }},
    {"top_k1000", [](SamplingParams* p) { p->top_k = 1000; }},
    {"min_p0.05", [](SamplingParams* p) { p->min_p = 0.05f; }},
    {"temp0.7_top_k40_top_p0.9",
     [](SamplingParams* p) {
       p->temperature = 0.7f;
       p->top_k = 40;
       p->top_p = 0.9f;
     }},
};

struct Case {
  const SamplerKernels* kernels = nullptr;
  SamplingParams params;
  bool peaked = true;
  uint32_t history = 0;  // tokens of the sequence, with penalties
};

void SampleRow(benchmark::State& state, const Case& c) {
  static Rows all_rows[] = {MakeRows(false), MakeRows(true)};
  Rows& rows = all_rows[c.peaked];
  Sampler sampler(c.kernels, {2});
  std::mt19937 random(2);
  TokenHistory history;
  history.Reset(c.history / 2);
  for (uint32_t i = 0; i < c.history; ++i) {
    history.Append(std::vector<int32_t>{static_cast<int32_t>(random() % kVocab)});
  }
  const bool want_logprobs = c.params.num_logprobs != kNoLogprobs;
  PositionLogprobs logprobs;
  uint32_t position = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto token =
        sampler.Sample(rows[position % kRows],
                       {.params = c.params, .position = position, .counts = history.counts()},
                       want_logprobs ? &logprobs : nullptr);
    CHECK_OK(token.status());
    benchmark::DoNotOptimize(*token);
    ++position;
  }
}

// Of many short runs the best and the median: a busy machine disturbs the best least.
void Register(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.02)
      ->Repetitions(25)
      ->DisplayAggregatesOnly()
      ->ComputeStatistics("best", [](const std::vector<double>& times) {
        return *std::min_element(times.begin(), times.end());
      });
}

void RegisterSetting(const std::string& name, const Case& c) {
  Register(name, [c](benchmark::State& state) { SampleRow(state, c); });
  // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the library owns what is registered
}

void RegisterAll() {
  for (const auto& [name, rows] :
       {std::pair("read_row/cache", kRows), std::pair("read_row/memory", kRowsInMemory)}) {
    Register(name, [rows = rows](benchmark::State& state) { ReadRow(state, rows); });
  }
  for (const std::string& isa : cpu::SupportedIsas()) {
    Case c;
    const auto kernels = cpu::SelectSamplerKernels(isa);
    CHECK_OK(kernels.status());
    c.kernels = *kernels;
    for (const Setting& setting : kSettings) {
      for (const bool peaked : {true, false}) {
        for (const bool logprobs : {false, true}) {
          c.params = SamplingParams();
          setting.set(&c.params);
          c.params.num_logprobs = logprobs ? 5 : kNoLogprobs;
          c.peaked = peaked;
          RegisterSetting(isa + "/" + setting.name + (logprobs ? "/logprobs5" : "") +
                              (peaked ? "/peaked" : "/flat"),
                          c);
        }
      }
    }
    c.params = SamplingParams();
    c.params.top_p = 0.9f;
    c.params.repetition_penalty = 1.1f;
    c.params.frequency_penalty = 0.5f;
    c.peaked = true;
    for (const uint32_t tokens : {128u, 2048u}) {
      c.history = tokens;
      RegisterSetting(isa + "/top_p0.9/penalties_over_" + std::to_string(tokens) + "/peaked", c);
    }
  }
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  flotilla::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
