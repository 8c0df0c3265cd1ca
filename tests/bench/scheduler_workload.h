// A scheduler in steady state for scheduler_bench: as many requests run and wait as the options
// say, whoever ends is replaced by who waits, and that one by a new request. The workers are a
// function that samples made-up tokens.
//
// Prompts of prompt_tokens share shared_tokens with num_prefixes groups; outputs are drawn evenly
// around mean_output. Units: tokens, nanoseconds. Threads: one. Errors: CHECK.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

struct SchedulerWorkloadOptions {
  std::string policy = "fcfs";
  uint32_t num_running = 256, num_waiting = 2000;
  uint32_t prompt_tokens = 4096, shared_tokens = 2048, num_prefixes = 16;
  uint32_t mean_output = 1024;
  uint32_t page_size = 16;
  uint32_t chunked_prefill_size = 512;
  uint32_t num_tenants = 8;
  uint64_t seed = 1;
};

// Of one step, or summed over those in which the kernel left the core to us.
struct StepCosts {
  std::vector<int64_t> plan_ns, result_ns;
  uint64_t plan_allocations = 0, result_allocations = 0, add_allocations = 0;
  uint64_t steps = 0, interrupted = 0, admitted = 0, added = 0;
};

// Calls of operator new so far, in this process.
uint64_t NumAllocations();

class SchedulerWorkload {
 public:
  // Runs until all slots are taken and everyone decodes or will soon.
  explicit SchedulerWorkload(const SchedulerWorkloadOptions& options);
  // Appends to *costs, if given.
  void Run(uint32_t steps, StepCosts* costs);
  const SchedulerStats& stats() const { return scheduler_->stats(); }

 private:
  ReqSpec NewSpec();
  void Refill(StepCosts* costs);
  void Answer();

  const SchedulerWorkloadOptions options_;
  std::mt19937_64 random_;
  std::vector<std::vector<int32_t>> prefixes_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  StepResult result_;
  std::vector<ReqOutput> outputs_;
  ReqId next_id_ = 1;
  int64_t now_ns_ = 1;
};

}  // namespace flotilla
