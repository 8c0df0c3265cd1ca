// The CPU behind Backend, on the kernels of one instruction set and a pool of compute threads.
//
// Matrices are multiplied in fp32, or, for quantised tensors, as integers times int8 activations;
// the residual stream, norms and attention are fp32; the KV cache is fp32, bf16 or int8. All in
// fp32 is the oracle of the faster arithmetic.
//
// Every op is synchronous: it spreads its work over the pool and waits. Memory: everything is
// allocated and touched at start; a step allocates nothing. Layouts are in kernels.h and
// quant_kernels.h. Threads,
// ownership, errors: as Backend. The name has both types, "cpu-float32-kv-bfloat16": instruction
// sets and numbers of threads give the same bits.
#pragma once

#include <memory>

#include "worker_proc/cpu/cpu_weights.h"
#include "worker_proc/cpu/kernels.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/cpu/thread_pool.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla {

struct CpuBackendOptions {
  const cpu::KernelTable* kernels = nullptr;
  const cpu::QuantKernelTable* quant_kernels = nullptr;
  cpu::ComputeType dtype = cpu::ComputeType::kFloat32;
  cpu::KvType kv_cache_dtype = cpu::KvType::kFloat32;
  cpu::ThreadPoolOptions threads = {};
  cpu::PackCacheOptions pack_cache = {};
  Heartbeat heartbeat = {};  // beaten while memory is allocated
};
std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace flotilla
