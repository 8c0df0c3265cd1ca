// How long a step takes on the workers of one machine, fitted from what a flight recording says its
// steps took, so that the scheduler can be tried under virtual time.
//
// ns = c · terms(work), c ≥ 0: a constant, decoded and prompt tokens, the positions that each of
// them read, and the first few tokens apart from the rest, because a product of a matrix and a
// vector costs more a token than one of two matrices. Least squares of the relative error, outliers
// weighed less. step_cost.h is the same in small, learned while it runs.
//
// Units: nanoseconds, tokens. Threads: any. Errors: InvalidArgument for a file that is no model,
// FailedPrecondition for too few steps.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "scheduler_proc/core/step_cost.h"
#include "shm/step_plan.h"

namespace flotilla {

// What a plan asks of the workers. A row of one token that samples is a decode, unless its slot is
// new.
StepWork WorkOf(const StepPlan& plan);

struct StepSample {
  StepWork work;
  int64_t ns = 0;
};

struct StepModel {
  static constexpr size_t kTerms = 6;
  static constexpr std::array<const char*, kTerms> kNames = {"step",
                                                             "decode_token",
                                                             "prompt_token",
                                                             "decode_1k_reads",
                                                             "prompt_1k_reads",
                                                             "token_of_the_first_8"};

  std::array<double, kTerms> ns = {};  // a unit of each term
  int64_t gap_ns = 0;       // from a step's end to the next one's start, if its plan is there
  int64_t dispatch_ns = 0;  // from a plan to its step's start, if the workers wait
  int64_t result_ns = 0;    // from a step's end to its result in the scheduler
  uint64_t num_steps = 0;   // it was fitted from
  double error = 0;         // mean of |predicted - measured| / measured over them
  // Of the workers' model and cache, for who simulates them.
  uint32_t num_pages = 0, page_size = 0, context_length = 0, vocab_size = 0;

  int64_t Predict(const StepWork& work) const;
};

// Fills ns, num_steps and error. At least kMinSamples.
inline constexpr size_t kMinSamples = 32;
Status FitSteps(const std::vector<StepSample>& samples, StepModel* model);
// From the records of flight recordings (shm/flight_ring.h) of schedulers that had the same
// workers.
StatusOr<StepModel> FitRecordings(const std::vector<std::vector<std::string>>& recordings);

std::string ToJson(const StepModel& model);
StatusOr<StepModel> ParseStepModel(std::string_view json);

}  // namespace flotilla
