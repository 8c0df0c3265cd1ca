#include "tests/worker_proc/tiles_emulated.h"

#include <immintrin.h>

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"

#include "worker_proc/cpu/simd_quant_avx2.inc"

struct T {
  static inline thread_local bool configured = false;
  // As a real one: a product is illegal unless tiles are configured, and few are.
  static void Begin() {
    if (configured) __builtin_trap();
    configured = true;
  }
  static void End() { configured = false; }
  static void Dots(const int8_t* q, const int8_t* w, size_t step, size_t count, int32_t* sums) {
    if (!configured) __builtin_trap();
    for (size_t b = 0; b < count; ++b, q += step, w += step) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        for (uint32_t r = 0; r < kPanelRows; ++r) {
          int32_t sum = 0;
          for (uint32_t k = 0; k < kQuantBlock; ++k) {
            sum += q[t * kQuantBlock + k] * w[k / 4 * kPanelRows * 4 + r * 4 + k % 4];
          }
          *sums++ = sum;
        }
      }
    }
  }
  static const QuantKernelTable& Few() { return Avx2QuantKernels(); }
};

#include "worker_proc/cpu/simd_quant_tiles.inc"

}  // namespace

namespace testing {

const QuantKernelTable& EmulatedTileKernels() {
  static const QuantKernelTable kTable = TileTable("tiles-emulated");
  return kTable;
}

}  // namespace testing
}  // namespace flotilla::cpu
