// The kernels over tiles with a tile unit of plain loops: what a machine without one can show of
// them.
#pragma once

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu::testing {

struct EmulatedTiles {
  const QuantKernelTable* table;
  const uint64_t* products;  // of blocks, by all threads so far
};

const EmulatedTiles& EmulatedTilesAvx2();
const EmulatedTiles& EmulatedTilesAvx512();  // needs VNNI

}  // namespace flotilla::cpu::testing
