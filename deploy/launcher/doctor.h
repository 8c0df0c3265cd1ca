// `flotilla doctor`: what this machine offers, what serve would make of it, and why.
//
// Threads: any. Errors: as of the flags; a model that can't be read is said and passed over.
#pragma once

#include <string>

#include "deploy/launcher/host_plan.h"
#include "deploy/launcher/options.h"

namespace flotilla {

// The lines that doctor prints.
std::string DoctorText(const Machine& machine, const HostPlan& host);

// The exit code.
int Doctor(const ServeOptions& options);

}  // namespace flotilla
