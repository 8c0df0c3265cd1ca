// GraphApi on a CUDA device: stream capture in thread-local mode, so that other threads may do what
// a capture forbids.
//
// Threads: one, which made it. Ownership: it owns its two streams and all handles. Errors: CUDA's
// codes as Internal, cudaErrorMemoryAllocation as ResourceExhausted; Unavailable: no such device.
#pragma once

#include <memory>

#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::cuda {

// Streams as cudaStream_t, for whoever launches kernels.
class CudaGraphApi : public GraphApi {
 public:
  static StatusOr<std::unique_ptr<CudaGraphApi>> Create(int device);
  virtual void* stream(DeviceStream stream) const = 0;
};

}  // namespace flotilla::cuda
