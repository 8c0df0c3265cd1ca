// The CUDA Backend, on a GPU or on the emulated device: our own kernels, and the device's matrix
// products, one op after another on one stream (eager).
//
// The residual stream and what Linear puts out are float; weights, what they multiply and the gates
// have the element `dtype`, the cache `kv_cache_dtype`. So rounding happens where a matrix or the
// cache reads, and nowhere else. Memory: everything is allocated by the probe's step. Threads,
// ownership, errors: as Backend. The name has device and both types,
// "cuda-bfloat16-kv-bfloat16".
#pragma once

#include <memory>

#include "worker_proc/cuda/device.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cuda {

struct CudaBackendOptions {
  Element dtype = Element::kBFloat16;
  Element kv_cache_dtype = Element::kBFloat16;
  // False: steps of one token take the matrix-vector kernel, which reads weights faster, but then a
  // request's bits depend on whether it is alone in a step.
  bool batch_invariant = true;
  Heartbeat heartbeat = {};  // beaten while weights are loaded
};
const char* ElementName(Element element);  // "bfloat16"

// The backend owns the device.
std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device,
                                         const CudaBackendOptions& options);

}  // namespace flotilla::cuda
