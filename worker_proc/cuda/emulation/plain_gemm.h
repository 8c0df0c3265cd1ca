// The matrix product of the emulated device: each output element is a plain loop over the inputs,
// in eight lanes (column mod 8) that are folded in order. Threads: any. Errors: none.
#pragma once

#include "worker_proc/cuda/device.h"

namespace flotilla::cuda::emulated {

void PlainGemm(const GemmArgs& args);

}  // namespace flotilla::cuda::emulated
