// The kernels over tiles with the vectors of AVX-512 and VNNI and a tile unit of plain loops.
#include <immintrin.h>

#include "tests/worker_proc/tiles_emulated.h"
#include "worker_proc/cpu/tile_blocks.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

#include "worker_proc/cpu/simd_quant_avx512.inc"

const QuantKernelTable& VectorKernels() { return Avx512QuantKernels(); }

#include "tests/worker_proc/tiles_emulated.inc"

}  // namespace

namespace testing {

const EmulatedTiles& EmulatedTilesAvx512() {
  static const QuantKernelTable kTable = TileTable("tiles-avx512");
  static const EmulatedTiles kTiles = {&kTable, &T::products};
  return kTiles;
}

}  // namespace testing
}  // namespace flotilla::cpu
