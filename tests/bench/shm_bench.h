// The sections of shm_bench. Each forks what it needs, measures in alternating rounds, and adds its
// figures to the report. Nothing outlives it: memory without names, children that die with it.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/bench_process.h"
#include "tests/bench/bench_report.h"

namespace flotilla {

struct ShmBenchOptions {
  int iterations = 5000;  // a round of the fastest measurements; slow ones take fewer
  int rounds = 7;
  uint32_t tp = 2;
  bool pin = true;
  std::vector<int> cores;  // allowed ones
  // A round ends early after this: on a busy machine a few time slices may go to others.
  int64_t round_ns = 1'500'000'000;

  // Every process of `processes` has a core of its own, so spinning makes sense.
  bool Fits(size_t processes) const { return processes <= cores.size(); }
  int Core(size_t process, size_t processes) const {
    return pin && Fits(processes) ? cores[process] : kNotPinned;
  }
};

void RunRoundTrips(const ShmBenchOptions& options, Report* report);
void RunWakeUps(const ShmBenchOptions& options, Report* report);
void RunCollectives(const ShmBenchOptions& options, Report* report);

}  // namespace flotilla
