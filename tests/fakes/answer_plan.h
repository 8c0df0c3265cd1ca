// What workers say to a plan if it does not matter what they sample. Threads: any.
#pragma once

#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla::testing {

// `token` for every row, and wherever a draft has it.
inline StepResult AnswerPlan(const StepPlan& plan, int32_t token) {
  StepResult result;
  result.step_id = plan.step_id;
  result.epoch = plan.epoch;
  const int32_t* ids = plan.input_ids.data();
  for (const PlanRow& row : plan.rows) {
    RowResult& out = result.rows.emplace_back();
    out.slot = row.slot;
    out.token = token;
    const bool verify = (row.flags & kRowVerify) != 0;
    for (uint32_t i = 1; verify && i < row.num_tokens && ids[i] == token; ++i)
      out.accepted.push_back(token);
    ids += row.num_tokens;
  }
  return result;
}

}  // namespace flotilla::testing
