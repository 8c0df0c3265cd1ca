// From a worker's flags to the Backend that it runs on, and what else depends on the device.
//
// Threads: any. Ownership: the result's functions ask its backend's device, so it lives as long as
// they do. Errors: InvalidArgument for a value that the device does not have; NotFound: there is no
// such device; Unimplemented: not in this build.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "common/base/flags.h"
#include "worker_proc/cpu/cpu_options.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/heartbeat.h"
#include "worker_proc/runner/kv_cache.h"
#include "worker_proc/runner/sampler_kernels.h"

namespace flotilla {

struct DeviceFlags {
  std::string device = "cpu";
  CpuFlags cpu;      // dtype, kv_cache_dtype and isa on any device
  uint32_t gpu = 0;  // as CUDA numbers them
  GpuFlags gpu_flags;
};

struct RankPlace {
  std::string model_path;
  const Checkpoint* checkpoint = nullptr;
  uint32_t rank = 0, ranks = 1;
  Heartbeat heartbeat;  // beaten while memory is allocated and weights are loaded
  const std::atomic<uint32_t>* epoch = nullptr;  // the replica's
};

struct OpenedBackend {
  std::unique_ptr<Backend> backend;
  const SamplerKernels* sampler_kernels = nullptr;
  int64_t spin_ns = 0;                          // how long a rank may spin for the others
  std::function<uint64_t()> available_memory;   // bytes, where weights and KV cache go
  std::function<DeviceMemory()> device_memory;  // empty: that is the host's
};
StatusOr<OpenedBackend> OpenBackend(const DeviceFlags& flags, const RankPlace& place);

}  // namespace flotilla
