// The end of a request's way, for targets at its beginning: what the scheduler takes over (a
// CheckedRequest) must be within its limits, and must make a step plan that the workers take.
//
// Threads: one. Errors: CHECK.
#pragma once

#include <string>

#include "common/base/check.h"
#include "scheduler_proc/front/validate.h"
#include "shm/step_plan.h"

namespace flotilla::fuzz {

inline constexpr uint32_t kContext = 64;  // tokens

inline StepPlan FirstPlan(const ReqSpec& spec) {
  StepPlan plan;
  PlanOpen open;
  open.output_start = static_cast<uint32_t>(spec.prompt_ids.size());
  open.sampling = spec.sampling;
  open.num_logit_bias = static_cast<uint32_t>(spec.logit_bias.size());
  open.num_stop_ids = static_cast<uint32_t>(spec.stop_token_ids.size());
  plan.opens.push_back(open);
  plan.logit_bias = spec.logit_bias;
  plan.stop_ids = spec.stop_token_ids;
  plan.input_ids = spec.prompt_ids;
  plan.input_ids.insert(plan.input_ids.end(), spec.resumed_ids.begin(), spec.resumed_ids.end());
  PlanRow row;
  row.num_tokens = static_cast<uint32_t>(plan.input_ids.size());
  row.num_new_pages = 1;
  row.flags = kRowSample | kRowPromptLogprobs;
  if (spec.pooling != Pooling::kNone) row.flags = kRowEmbed;
  if (spec.pooling == Pooling::kMean) row.flags |= kRowPoolMean;
  plan.rows.push_back(row);
  plan.new_pages.push_back(0);
  return plan;
}

inline void CheckByWorker(const CheckedRequest& checked, const RequestLimits& limits) {
  const ReqSpec& spec = checked.spec;
  CHECK(!checked.request_id.empty() && checked.deadline_ms >= 0);
  CHECK(!spec.prompt_ids.empty());
  CHECK((spec.max_new_tokens == 0) == (spec.pooling != Pooling::kNone));
  CHECK(spec.prompt_ids.size() + spec.max_new_tokens <= limits.context_length);
  CHECK(spec.min_new_tokens <= spec.max_new_tokens);
  CHECK(spec.resumed_ids.empty() || spec.resumed_ids.size() < spec.max_new_tokens);
  std::string frame;
  BuildStepPlan(FirstPlan(spec), &frame);
  const StepPlanLimits plan_limits = {.max_slots = 1,
                                      .max_tokens = limits.context_length,
                                      .num_pages = 1,
                                      .vocab_size = limits.vocab_size,
                                      .max_positions = limits.context_length};
  StepPlan plan;
  CHECK_OK(ParseStepPlan(frame, plan_limits, &plan));
}

}  // namespace flotilla::fuzz
