// A hash of everything that a plan tells the workers: two plans are the same, or all but surely
// differ in it. Threads: any.
#pragma once

#include <cstdint>

#include "shm/step_plan.h"

namespace flotilla {

uint64_t PlanHash(const StepPlan& plan);

}  // namespace flotilla
