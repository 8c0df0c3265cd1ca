// Integer kernels for AVX-512 with VNNI; called only where the CPU and the system have both.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

struct Q {
  using Int = __m512i;
  // As many integer and as many float accumulators, of 32 registers.
  static constexpr int kMaxTokens = 12;

  static V::Reg LoadHalf(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V::Reg ToFloat(Int x) { return _mm512_cvtepi32_ps(x); }
  static Int Set1Int(int32_t x) { return _mm512_set1_epi32(x); }
  static Int Sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  template <int kBits>
  static Int ShiftLeft(Int x) {
    return _mm512_slli_epi32(x, kBits);
  }

  // Four k of 16 rows times the same four of each token.
  template <int kTokens>
  static void DotQuad(Int weights, const int8_t* x, size_t x_stride, Int (*dot)[1]) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      int32_t quad;
      __builtin_memcpy(&quad, x + t * x_stride * sizeof(ActBlock), sizeof(quad));
      dot[t][0] = _mm512_dpbusd_epi32(dot[t][0], weights, _mm512_set1_epi32(quad));
    }
  }

  template <int kBits, int kTokens>
  static void Dot(const uint8_t* block, const ActBlock* x, size_t x_stride, Int (*dot)[1]) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) dot[t][0] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j) {
      const Int raw = _mm512_loadu_si512(block + j * 64);
      if constexpr (kBits == 8) {
        DotQuad<kTokens>(raw, x->q + 4 * j, x_stride, dot);
      } else {
        const Int mask = _mm512_set1_epi8(0x0f);
        DotQuad<kTokens>(_mm512_and_si512(raw, mask), x->q + 4 * j, x_stride, dot);
        DotQuad<kTokens>(_mm512_and_si512(_mm512_srli_epi16(raw, 4), mask), x->q + 16 + 4 * j,
                         x_stride, dot);
      }
    }
  }

  static uint32_t MaxBits(const V::Reg* x) {
    const Int mask = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x[0]), mask),
                         _mm512_and_si512(_mm512_castps_si512(x[1]), mask)));
  }

  // q and sum of a block.
  static void QuantizeBlock(const V::Reg* x, V::Reg inverse, ActBlock* out) {
    const Int q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse));
    const Int q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q), _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16), _mm512_cvtepi32_epi8(q1));
    out->sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
  }
};

#include "worker_proc/cpu/simd_quant.inc"

}  // namespace

const QuantKernelTable& Avx512QuantKernels() {
  static constexpr QuantKernelTable kTable = {"avx512-vnni", Gemm, GateUpSilu, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
