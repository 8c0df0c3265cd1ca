// `flotilla doctor`: what this machine offers, what serve would make of it and why, and what to do
// about what stands in the way.
//
// Threads: any. Errors: as of the flags; a model that can't be read is said and passed over.
#pragma once

#include <optional>
#include <string>

#include "deploy/launcher/host_plan.h"
#include "deploy/launcher/model_needs.h"
#include "deploy/launcher/options.h"

namespace flotilla {

// The lines that doctor prints. `needs`: none if the model can't be read, or is no CPU's business.
std::string DoctorText(const Machine& machine, const HostPlan& host,
                       const std::optional<ModelNeeds>& needs);

// The exit code.
int Doctor(const ServeOptions& options);

}  // namespace flotilla
