// The scheduler's core under virtual time: real decisions, and steps that take what a StepModel
// says.
//
// One replica, whose loop does what scheduler_loop.cc does: it takes what has come, then results,
// and plans when Scheduler::PlanDueNs says so. A request ends after its output_tokens; its client
// hears of each token at the result. Everything before the scheduler (router, tokenizer, network)
// takes no time.
//
// Units: nanoseconds of virtual time, tokens. Threads: any, one a call. Errors: InvalidArgument for
// a configuration that can't be, and for a request that could never run.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/simulation/step_model.h"
#include "scheduler_proc/simulation/workload.h"

namespace flotilla {

struct SimOptions {
  SchedulerConfig config;  // with num_pages, context_length and vocab_size
  StepModel model;
  // 0: requests come when they say. Else so many clients, each sending its next as it has an
  // answer.
  uint32_t clients = 0;
};

struct SimReport {
  uint64_t finished = 0, rejected = 0;  // requests; rejected: the queue was full
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  uint64_t steps = 0, retractions = 0;
  int64_t duration_ns = 0;                             // first arrival to last token
  std::vector<int64_t> ttft_ns, token_gap_ns, e2e_ns;  // rising
  double OutputRate() const;                           // tokens a second
};
// Mean, and the value that a share of a rising list is not above. 0 of an empty list.
double MeanOf(const std::vector<int64_t>& values);
int64_t Quantile(const std::vector<int64_t>& rising, double share);

StatusOr<SimReport> Simulate(const SimOptions& options, const std::vector<SimRequest>& requests);

}  // namespace flotilla
