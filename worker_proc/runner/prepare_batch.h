// StepPlan + slots → ForwardBatch (requirement 004's prepare_prefill and prepare_decode, as one:
// prefill, chunks after a prefix hit and decodes share a ragged batch).
//
// Pure. `slots` has the plan applied. Reuses *batch's memory. Threads: one. Errors: none: the plan
// was checked by ParseStepPlan and SlotTable::Apply.
#pragma once

#include "shm/step_plan.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/forward_batch.h"
#include "worker_proc/runner/slot_table.h"

namespace flotilla {

void PrepareBatch(const StepPlan& plan, const SlotTable& slots, ForwardBatch* batch);

// What the step is to the scheduler: as in ForwardBatch, but a draft's row decodes.
ForwardMode StepMode(const StepPlan& plan);

// Of how many of the row's tokens logits are wanted.
uint32_t NumLogitsRows(const PlanRow& row);

// Room for steps of up to `shape`.
void MakeRoom(const PlanShape& shape, const SlotTable& slots, ForwardBatch* batch);

}  // namespace flotilla
