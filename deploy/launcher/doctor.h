// `flotilla doctor`: what this machine offers, what serve would make of it, and why.
//
// Threads: any. Errors: as of the flags; a model that can't be read is said and passed over.
#pragma once

#include <string>

#include "common/checkpoint/model_config.h"
#include "deploy/launcher/core_plan.h"
#include "deploy/launcher/options.h"

namespace flotilla {

// What serve and engine ask PlanCores; a model that is null sets no limit.
CoreRequest CoreRequestOf(const ServeOptions& options, const ModelConfig* model);

// The lines that doctor prints.
std::string DoctorText(const Machine& machine, const CorePlan& plan);

// The exit code.
int Doctor(const ServeOptions& options);

}  // namespace flotilla
