// The sampler's passes for AVX2 + FMA. Compiled with -mavx2 -mfma; called only where the CPU has
// both.
#include <immintrin.h>

#include "worker_proc/cpu/sampler_kernels.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"

struct S : V {
  using Sums = __m256i;
  static Reg FmaSub(Reg a, Reg b, Reg c) { return _mm256_fmsub_ps(a, b, c); }
  static Reg TimesPow2(Reg p, Reg shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  }
  static bool AnyNan(Reg a, Reg b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
  }
  static uint32_t AtLeast(Reg a, Reg b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
  }
  static Reg Select(uint32_t bits, Reg a) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
    const __m256 chosen = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes));
    return _mm256_blendv_ps(Set1(-__builtin_inff()), a, chosen);
  }
  static Sums ZeroSums() { return _mm256_setzero_si256(); }
  static Sums AddBits(Sums sums, Reg x) { return _mm256_add_epi32(sums, _mm256_castps_si256(x)); }
  static uint32_t Total(Sums sums) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(x));
  }
};

#include "worker_proc/cpu/sampler_kernels.inc"

}  // namespace

const SamplerKernels& Avx2SamplerKernels() {
  static constexpr SamplerKernels kTable = {"avx2", TileMax, TileSums, Weights,
                                            Count,  Collect, Mask};
  return kTable;
}

}  // namespace flotilla::cpu
