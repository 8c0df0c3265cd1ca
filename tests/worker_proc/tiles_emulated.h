// The kernels over tiles with vectors of AVX2 and a tile unit of plain loops: what a machine
// without one can show of them.
#pragma once

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu::testing {

const QuantKernelTable& EmulatedTileKernels();

}  // namespace flotilla::cpu::testing
