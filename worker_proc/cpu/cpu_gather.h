// Backend's gathers on the CPU: columns of all ranks put side by side.
//
// Threads: the rank's, with the pool's. Errors: the collective's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "shm/collective.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::cpu {

class ColumnGather {
 public:
  static constexpr uint32_t kAllRanks = UINT32_MAX;

  // staging: as large as the largest tensor that is gathered.
  ColumnGather(ThreadPool* pool, std::byte* staging) : pool_(pool), staging_(staging) {}

  // `root` (or all ranks) gets the columns cols[r] of each rank r's `local` in `out`.
  Status Run(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
             Tensor out);

 private:
  ThreadPool* const pool_;
  std::byte* const staging_;
  std::vector<size_t> counts_;
};

}  // namespace flotilla::cpu
