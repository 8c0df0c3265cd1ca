// Integer kernels for AVX-512 with VNNI; called only where the CPU and the system have both.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

struct Q {
  using Int = __m512i;
  // An integer and a float accumulator each, of 32 registers; with 6 bits two integers.
  template <int kBits>
  static constexpr int kMaxTokens = kBits == 6 ? 8 : 12;

  static V::Reg LoadHalf(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V::Reg LoadBytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
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

  // x << n, to the right if n < 0, by 16 bits at a time: what crosses from byte to byte is masked.
  static Int Shift(Int x, int n) {
    return n >= 0 ? _mm512_slli_epi16(x, static_cast<unsigned>(n))
                  : _mm512_srli_epi16(x, static_cast<unsigned>(-n));
  }
  // Four k of weights with less than 8 bits, from 4 j on, and four from 16 + 4 j on, these in the
  // upper bits of their bytes: 8 - kBits too far left.
  template <int kBits>
  static void Quads(const uint8_t* block, int j, Int* low, Int* high) {
    const Int raw = _mm512_loadu_si512(block + j * 64);
    *low = _mm512_and_si512(raw, _mm512_set1_epi8(0x0f));
    *high = _mm512_and_si512(raw, _mm512_set1_epi8(static_cast<char>(0xf0)));
    if constexpr (kBits > 4) {
      const Int plane = _mm512_loadu_si512(block + (kBits == 5 ? 4 : 4 + j / 2) * 64);
      const Int bits = Shift(plane, kBits == 5 ? 3 - 2 * j : 2 - j % 2 * 4);
      constexpr int kAndOr = 0xf8;  // a | (b & c)
      *low =
          _mm512_ternarylogic_epi64(*low, bits, _mm512_set1_epi8(kBits == 5 ? 0x10 : 0x30), kAndOr);
      *high = _mm512_ternarylogic_epi64(*high, bits, _mm512_set1_epi8(kBits == 5 ? 0x08 : 0x0c),
                                        kAndOr);
    }
  }

  template <int kBits, int kTokens>
  static void Dot(const uint8_t* block, const TileQ<kBits>* tile, Int (*dot)[1]) {
    // Few tokens need several chains each, or vpdpbusd's latency shows. The odd ones are those of
    // the high quads, which are then shifted as sums.
    constexpr int kChains = kTokens == 1 ? 4 : kTokens <= 3 ? 2 : 1;
    Int sum[kChains][kTokens];
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sum[c][t] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int j = 0; j < (kBits == 8 ? 8 : 4); ++j) {
      if constexpr (kBits == 8) {
        DotQuad<kTokens>(_mm512_loadu_si512(block + j * 64), tile, 4 * j, sum[j % kChains]);
      } else {
        Int low;
        Int high;
        Quads<kBits>(block, j, &low, &high);
        if constexpr (kChains == 1) high = _mm512_srli_epi16(high, 8 - kBits);
        DotQuad<kTokens>(low, tile, 4 * j, sum[2 * j % kChains]);
        DotQuad<kTokens>(high, tile, 16 + 4 * j, sum[(2 * j + 1) % kChains]);
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (kChains == 4) {
        sum[0][t] = _mm512_add_epi32(sum[0][t], sum[2][t]);
        sum[1][t] = _mm512_add_epi32(sum[1][t], sum[3][t]);
      }
      if constexpr (kChains > 1) {
        if constexpr (kBits < 8) sum[1][t] = _mm512_srai_epi32(sum[1][t], 8 - kBits);
        sum[0][t] = _mm512_add_epi32(sum[0][t], sum[1][t]);
      }
      dot[t][0] = sum[0][t];
    }
  }

  // sub_scales: sc0 and sc1 of each row; offset: HalfSums of each token.
  template <int kTokens>
  static void Dot6(const uint8_t* block, const uint8_t* sub_scales, const TileQ<6>* tile,
                   const int32_t* offset, Int (*dot)[1]) {
    constexpr bool kShiftSums = kTokens <= 4;
    Int sum[2][kTokens];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sum[half][t] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      Int low;
      Int high;
      Quads<6>(block, j, &low, &high);
      if constexpr (!kShiftSums) high = _mm512_srli_epi16(high, 2);
      DotQuad<kTokens>(low, tile, 4 * j, sum[0]);
      DotQuad<kTokens>(high, tile, 16 + 4 * j, sum[1]);
    }
    const Int scales =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sub_scales)));
    const Int twice = _mm512_slli_epi16(scales, 1);
    const Int first = _mm512_srai_epi32(_mm512_slli_epi32(scales, 16), 16);
    const Int second = _mm512_srai_epi32(scales, 16);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (kShiftSums) sum[1][t] = _mm512_srai_epi32(sum[1][t], 2);
      dot[t][0] = _mm512_add_epi32(_mm512_mullo_epi32(sum[0][t], first),
                                   _mm512_mullo_epi32(sum[1][t], second));
      dot[t][0] = _mm512_dpwssd_epi32(dot[t][0], twice, _mm512_set1_epi32(offset[t]));
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
