// Integer kernels for AMX's tiles of int8 beside AVX-512 with VNNI; called only where the CPU has
// both and the system lets the process use tiles (CpuHasAmxInt8).
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/cpu/tile_blocks.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

#include "worker_proc/cpu/simd_quant_avx512.inc"

struct T {
  static void Begin() { _tile_loadconfig(&kTileConfig); }
  static void End() { _tile_release(); }

  // A product is stored after three more have begun: none waits for what was just begun, which
  // takes a third longer. (A macro, as the intrinsics take only literals; the barriers, as GCC does
  // not know that they read memory.)
#define FLOTILLA_STEP(b, sum, token, weight)                              \
  if ((b) >= 4 && (b)-4 < count) _tile_stored(sum, sums[(b)-4], kStride); \
  if ((b) < count) {                                                      \
    _tile_loadd(token, x[b].q, kQuantBlock);                              \
    _tile_loadd(weight, w[b].w, kStride);                                 \
    _tile_zero(sum);                                                      \
    _tile_dpbssd(sum, token, weight);                                     \
  }
  static void Dots(const TokenBlock* x, const PanelBlock* w, size_t count,
                   int32_t (*sums)[kTileSums]) {
    constexpr size_t kStride = kPanelRows * 4;
    asm volatile("" ::: "memory");
    for (size_t b = 0; b < count + 4; b += 4) {
      FLOTILLA_STEP(b, 0, 4, 6)
      FLOTILLA_STEP(b + 1, 1, 5, 7)
      FLOTILLA_STEP(b + 2, 2, 4, 6)
      FLOTILLA_STEP(b + 3, 3, 5, 7)
    }
    asm volatile("" ::: "memory");
  }
#undef FLOTILLA_STEP

  static const QuantKernelTable& Vectors() { return Avx512QuantKernels(); }
};

#include "worker_proc/cpu/simd_quant_tiles.inc"

}  // namespace

const QuantKernelTable& AmxQuantKernels() {
  static const QuantKernelTable kTable = TileTable("amx-int8");
  return kTable;
}

}  // namespace flotilla::cpu
