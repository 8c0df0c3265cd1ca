// From a worker's flags to CpuBackendOptions: "auto" resolved by the machine and the model file.
//
// Threads: any (pure but for the log). Errors: InvalidArgument, with what would work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cpu/cpu_backend.h"

namespace flotilla {

struct CpuFlags {
  std::string isa = "auto";
  std::string dtype = "auto";           // float32 | int8
  std::string kv_cache_dtype = "auto";  // float32 | bfloat16 | int8
  std::string pack_cache_dir = "auto";  // off | a folder
  uint32_t threads = 0;                 // of this rank; 0: its share of the cores
  std::vector<uint32_t> cpus;           // of each thread; empty: not pinned
  uint32_t spin_us = 0;
  uint32_t ranks = 1;  // of this replica
};

// `cores`: what this process may use. Never more threads than that; no spinning if the replica's
// ranks together have more.
StatusOr<CpuBackendOptions> ResolveCpuOptions(const CpuFlags& flags, const Checkpoint& checkpoint,
                                              uint32_t cores);

}  // namespace flotilla
