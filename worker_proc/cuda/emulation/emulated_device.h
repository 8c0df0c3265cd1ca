// A Device that is this process: memory is the heap's or, for other ranks of this host, a memfd's,
// kernels run on block.h, a matrix product is a plain loop. For tests and for trying the CUDA
// backend without a GPU; far slower than the CPU backend.
//
// Sums of a matrix product: as emulation/plain_gemm.h. Threads, errors: as Device.
#pragma once

#include <cstdint>
#include <memory>

#include "worker_proc/cuda/device.h"
#include "worker_proc/cuda/kernels/kernel_table.h"

namespace flotilla::cuda {

// How emulated devices reach each other.
struct EmulatedLinks {
  bool share_memory = true;
  bool have_communicator = false;
  int64_t patience_ns = 20'000'000'000;  // of an exchange by the communicator
  uint32_t fails_on_rank = UINT32_MAX;   // the communicator's exchanges do, once it has joined
};
// kernels: for tests, those of the emulation behind something of theirs; outlives the device.
std::unique_ptr<Device> MakeEmulatedDevice(const EmulatedLinks& links = {},
                                           const KernelTable& kernels = emulated::Kernels());

}  // namespace flotilla::cuda
