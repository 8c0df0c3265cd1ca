// What workers say to a plan if it does not matter what they sample. Threads: any.
#pragma once

#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla::testing {

// `token` for every row.
inline StepResult AnswerPlan(const StepPlan& plan, int32_t token) {
  StepResult result;
  result.step_id = plan.step_id;
  result.epoch = plan.epoch;
  for (const PlanRow& row : plan.rows) {
    RowResult& out = result.rows.emplace_back();
    out.slot = row.slot;
    out.token = token;
  }
  return result;
}

}  // namespace flotilla::testing
