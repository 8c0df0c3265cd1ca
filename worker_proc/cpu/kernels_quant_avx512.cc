// Integer kernels for AVX-512 with VNNI; called only where the CPU and the system have both.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

struct Q {
  using Int = __m512i;
  static constexpr int kMaxTokens = 12;  // an integer and a float accumulator each, of 32 registers

  static V::Reg LoadHalf(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V::Reg ToFloat(Int x) { return _mm512_cvtepi32_ps(x); }
  static Int Set1Int(int32_t x) { return _mm512_set1_epi32(x); }
  static Int Sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  template <int kBits>
  struct TileQ {
    int8_t q[kQuantBlock];
  };
  template <int kBits>
  static void PackQ(const int8_t* q, TileQ<kBits>* out) {
    __builtin_memcpy(out->q, q, kQuantBlock);
  }

  // Four k of 16 rows, from k on, times the same four of each token.
  template <int kTokens, typename TileQ>
  static void DotQuad(Int weights, const TileQ* tile, int k, Int* dot) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      int32_t quad;
      __builtin_memcpy(&quad, tile[t].q + k, sizeof(quad));
      dot[t] = _mm512_dpbusd_epi32(dot[t], weights, _mm512_set1_epi32(quad));
    }
  }

  template <int kBits, int kTokens>
  static void Dot(const uint8_t* block, const TileQ<kBits>* tile, Int (*dot)[1]) {
    // Few tokens need several chains each, or vpdpbusd's latency shows.
    constexpr int kChains = kTokens == 1 ? 4 : kTokens <= 3 ? 2 : 1;
    const Int mask = _mm512_set1_epi8(0x0f);
    Int sum[kChains][kTokens];
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sum[c][t] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j) {
      const Int raw = _mm512_loadu_si512(block + j * 64);
      if constexpr (kBits == 8) {
        DotQuad<kTokens>(raw, tile, 4 * j, sum[j % kChains]);
      } else {
        DotQuad<kTokens>(_mm512_and_si512(raw, mask), tile, 4 * j, sum[2 * j % kChains]);
        const Int high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
        DotQuad<kTokens>(high, tile, 16 + 4 * j, sum[(2 * j + 1) % kChains]);
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      dot[t][0] = sum[0][t];
#pragma GCC unroll 4
      for (int c = 1; c < kChains; ++c) dot[t][0] = _mm512_add_epi32(dot[t][0], sum[c][t]);
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
  static constexpr QuantKernelTable kTable = {"avx512-vnni", Gemm, GateUp, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
