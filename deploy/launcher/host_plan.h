// What serve, engine and join make of this host for a model: which ranks it has, and on which
// cores. `flotilla doctor` says it before they do it.
//
// Threads: any (pure). Errors: InvalidArgument naming the flag.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/checkpoint/model_config.h"
#include "deploy/launcher/core_plan.h"
#include "deploy/launcher/host_span.h"
#include "deploy/launcher/options.h"

namespace flotilla {

struct HostPlan {
  HostSpan span;
  uint32_t tp = 1;  // all ranks of a replica
  CorePlan cores;   // of the workers here; its tp is theirs
};

// `span`: SpanOfHead's or SpanOfJoin's; a model that is null sets no limit.
StatusOr<HostPlan> PlanHost(const Machine& machine, const ServeOptions& options,
                            const HostSpan& span, const ModelConfig* model);

}  // namespace flotilla
