// The matrix product of the emulated device: each output element is a plain loop over the inputs,
// in eight lanes (column mod 8) that are folded in order, or with the bits of the kernel for few
// rows where there is one. Threads: any. Errors: none.
#pragma once

#include "worker_proc/cuda/device.h"

namespace flotilla::cuda::emulated {

void PlainGemm(const GemmArgs& args);

}  // namespace flotilla::cuda::emulated
