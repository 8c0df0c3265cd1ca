// The command line's flags of the scheduler's core, for the scheduler itself and its simulation.
#pragma once

#include "common/base/flags.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

struct CoreFlags {
  SchedulerConfig config;
  bool disable_radix_cache = false, disable_mixed_chunk = false, disable_overlap = false;
  uint32_t max_step_ms = 0;

  // With what the switches say.
  SchedulerConfig Config() const;
};

// `flags` must outlive the parsing.
void AddCoreFlags(CLI::App* app, CoreFlags* flags);

}  // namespace flotilla
