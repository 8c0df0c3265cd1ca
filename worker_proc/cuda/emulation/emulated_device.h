// A Device that is this process: memory is the heap's, kernels run on block.h, a matrix product is
// a plain loop. For tests and for trying the CUDA backend without a GPU; far slower than the CPU
// backend.
//
// Sums of a matrix product: eight lanes (column mod 8), folded in order. Threads, errors: as
// Device.
#pragma once

#include <memory>

#include "worker_proc/cuda/device.h"

namespace flotilla::cuda {

std::unique_ptr<Device> MakeEmulatedDevice();

}  // namespace flotilla::cuda
