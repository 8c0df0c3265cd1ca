// The CUDA Backend, on a GPU or on the emulated device: our own kernels, and the device's matrix
// products, one op after another on one stream; steps that are small enough from graphs of them
// (graph/graph_runner.h), which are captured at the beginning of an epoch that has none yet. All
// give the same bits.
//
// The residual stream and what Linear puts out are float; weights, what they multiply and the gates
// have the element `dtype`, the cache `kv_cache_dtype`. So rounding happens where a matrix or the
// cache reads, and nowhere else. Memory: everything is allocated by the probe's step, but for
// graphs. Threads, ownership, errors: as Backend. The name has device and both types,
// "cuda-bfloat16-kv-bfloat16".
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "worker_proc/cuda/cuda_gather.h"
#include "worker_proc/cuda/device.h"
#include "worker_proc/cuda/plan/graph_mode.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cuda {

struct CudaBackendOptions {
  Element dtype = Element::kBFloat16;
  Element kv_cache_dtype = Element::kBFloat16;
  // False: matrix products may be chosen by the number of tokens, and steps of one token take the
  // matrix-vector kernel, which reads weights faster; then a request's bits depend on what else is
  // in its step.
  bool batch_invariant = true;
  // What is captured. With several ranks nothing can be, unless they reach each other's memory;
  // another mode than kAuto is an error then.
  GraphMode graph_mode = GraphMode::kNone;
  std::vector<uint32_t> cuda_graph_sizes = {};  // as GraphSizeOptions'
  uint32_t cuda_graph_max_size = 512;
  Heartbeat heartbeat = {};  // beaten while weights are loaded
  // The replica's, which changes when a rank is lost; null: none is. Waiting for it ends then.
  const std::atomic<uint32_t>* epoch = nullptr;
  // Matrices that the file has in blocks of 4 to 8 bits stay so on the device: the same bits as if
  // they became `dtype` when they are loaded, which float32 always does.
  bool keep_packed = false;
  ExchangeOptions exchange = {};
};
const char* ElementName(Element element);  // "bfloat16"

// The backend owns the device.
std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device,
                                         const CudaBackendOptions& options);

}  // namespace flotilla::cuda
