// A hash of everything that the core decided in a plan: two plans are the same, or all but surely
// differ in it. Masks come from grammars, not from the core, so they are left out; that a row has
// one is in its flags. Threads: any.
#pragma once

#include <cstdint>

#include "shm/step_plan.h"

namespace flotilla {

uint64_t PlanHash(const StepPlan& plan);

}  // namespace flotilla
