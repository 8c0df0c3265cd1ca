// Backend's gathers on the CPU: columns of all ranks put side by side.
//
// Quantised shards travel as their blocks. Where a shard is float and the whole is (also)
// quantised, the whole is quantised after the gather: the same bits.
//
// Units: columns, rows. Threads: the rank's, with the pool's. Ownership: `staging` is the caller's.
// Errors: the collective's.
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

  // staging: room for the largest gathered tensor as floats.
  ColumnGather(ThreadPool* pool, const QuantKernelTable* kernels, std::byte* staging);

  // `root` (or all ranks) gets the columns cols[r] of each rank r's `local` in `out`.
  Status Run(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
             Tensor out);

 private:
  // Token t's part of what was received from all ranks, side by side.
  void CopyRow(uint32_t rows, uint32_t t, std::byte* row) const;

  ThreadPool* const pool_;
  const QuantKernelTable& kernels_;
  std::byte* const staging_;
  std::vector<size_t> counts_;            // bytes of each rank, all rows
  std::vector<std::vector<float>> rows_;  // of each worker: a row that is only to be quantised
};

}  // namespace flotilla::cpu
