// The sampler's passes for AVX-512 F. Compiled with -mavx512f; called only where the CPU and the
// system have it.
#include <immintrin.h>

#include "worker_proc/cpu/sampler_kernels.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

struct S : V {
  using Sums = __m512i;
  static Reg FmaSub(Reg a, Reg b, Reg c) { return _mm512_fmsub_ps(a, b, c); }
  static Reg TimesPow2(Reg p, Reg shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  }
  static bool AnyNan(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
  static uint32_t AtLeast(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Reg Select(uint32_t bits, Reg a) {
    return _mm512_mask_mov_ps(Set1(-__builtin_inff()), static_cast<__mmask16>(bits), a);
  }
  static Sums ZeroSums() { return _mm512_setzero_si512(); }
  static Sums AddBits(Sums sums, Reg x) { return _mm512_add_epi32(sums, _mm512_castps_si512(x)); }
  // Not _mm512_reduce_add_epi32: it adds as signed, and these sums wrap.
  static uint32_t Total(Sums sums) {
    uint32_t lanes[16];
    _mm512_storeu_si512(lanes, sums);
    uint32_t total = 0;
    for (uint32_t lane : lanes) total += lane;
    return total;
  }
};

#include "worker_proc/cpu/sampler_kernels.inc"

}  // namespace

const SamplerKernels& Avx512SamplerKernels() {
  static constexpr SamplerKernels kTable = {"avx512", TileMax, TileSums, Weights,
                                            Count,    Collect, Mask};
  return kTable;
}

}  // namespace flotilla::cpu
