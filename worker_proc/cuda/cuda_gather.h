// Backend's gathers on a CUDA device, through the host: columns of all ranks put side by side. The
// way of a collective that knows no device memory, so correct everywhere and fast nowhere.
//
// Units: columns, rows, bytes. Threads: the rank's. Ownership: owns its staging memory. Errors: the
// collective's and the device's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shm/collective.h"
#include "worker_proc/cuda/cuda_tensor.h"

namespace flotilla::cuda {

class CudaGather {
 public:
  static constexpr uint32_t kAllRanks = UINT32_MAX;

  explicit CudaGather(Device* device) : device_(*device) {}

  // For wholes of up to so many bytes.
  void Reserve(uint64_t bytes);
  // `root` (or all ranks) gets the columns cols[r] of each rank r's `local` in `out`.
  Status Run(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
             Tensor out);

 private:
  Device& device_;
  std::vector<size_t> counts_;  // bytes of each rank, all rows
  std::vector<std::byte> local_, received_, whole_;
};

}  // namespace flotilla::cuda
