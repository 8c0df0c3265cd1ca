// Integer kernels for AVX2; called only where the CPU has AVX2, FMA and F16C.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"

struct Q {
  using Int = __m256i;
  static constexpr int kMaxTokens = 4;  // × 2 halves of a panel: 8 of 16 registers

  static V::Reg LoadHalf(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Int LoadInt(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static V::Reg ToFloat(Int x) { return _mm256_cvtepi32_ps(x); }
  static Int Set1Int(int32_t x) { return _mm256_set1_epi32(x); }
  static Int Sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  template <int kBits>
  static Int ShiftLeft(Int x) {
    return _mm256_slli_epi32(x, kBits);
  }
  static int32_t LoadQuad(const void* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return quad;
  }

  template <int kBits, int kTokens>
  static void Dot(const uint8_t* block, const ActBlock* x, size_t x_stride, Int (*dot)[2]) {
    if constexpr (kBits == 4) {
      Dot4<kTokens>(block, x, x_stride, dot);
    } else {
      Dot8<kTokens>(block, x, x_stride, dot);
    }
  }

  // Pairs of products in 16 bits: eight of them stay within 8 * 2 * 15 * 127 = 30,480.
  template <int kTokens>
  static void Dot4(const uint8_t* block, const ActBlock* x, size_t x_stride, Int (*dot)[2]) {
    const Int mask = _mm256_set1_epi8(0x0f);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Int raw[2] = {LoadInt(block + j * 64), LoadInt(block + j * 64 + 32)};
#pragma GCC unroll 2
      for (int high = 0; high < 2; ++high) {
        Int weights[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          weights[v] = _mm256_and_si256(high ? _mm256_srli_epi16(raw[v], 4) : raw[v], mask);
        }
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const Int quad = _mm256_set1_epi32(LoadQuad(x[t * x_stride].q + high * 16 + j * 4));
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) {
            const Int pairs = _mm256_maddubs_epi16(weights[v], quad);
            dot[t][v] = j + high == 0 ? pairs : _mm256_add_epi16(dot[t][v], pairs);
          }
        }
      }
    }
    const Int ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) dot[t][v] = _mm256_madd_epi16(dot[t][v], ones);
    }
  }

  // Products of 8 × 8 bits need 17 bits in pairs, so both sides are widened to 16: the even k and
  // the odd k of each quad apart, which needs no shuffle.
  template <int kTokens>
  static void Dot8(const uint8_t* block, const ActBlock* x, size_t x_stride, Int (*dot)[2]) {
    alignas(32) int32_t wide[kTokens][2][8];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const Int q = LoadInt(x[t * x_stride].q);
      _mm256_store_si256(reinterpret_cast<Int*>(wide[t][0]),
                         _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
      _mm256_store_si256(reinterpret_cast<Int*>(wide[t][1]), _mm256_srai_epi16(q, 8));
      dot[t][0] = _mm256_setzero_si256();
      dot[t][1] = _mm256_setzero_si256();
    }
    const Int mask = _mm256_set1_epi16(0x00ff);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Int raw[2] = {LoadInt(block + j * 64), LoadInt(block + j * 64 + 32)};
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        Int weights[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          weights[v] = odd ? _mm256_srli_epi16(raw[v], 8) : _mm256_and_si256(raw[v], mask);
        }
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const Int pair = _mm256_set1_epi32(wide[t][odd][j]);
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) {
            dot[t][v] = _mm256_add_epi32(dot[t][v], _mm256_madd_epi16(weights[v], pair));
          }
        }
      }
    }
  }

  static uint32_t MaxBits(const V::Reg* x) {
    const Int mask = _mm256_set1_epi32(0x7fffffff);
    Int max = _mm256_and_si256(_mm256_castps_si256(x[0]), mask);
    for (int v = 1; v < 4; ++v) {
      max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(x[v]), mask));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
  }

  // q and sum of a block.
  static void QuantizeBlock(const V::Reg* x, V::Reg inverse, ActBlock* out) {
    Int q[4];
    for (int v = 0; v < 4; ++v) q[v] = _mm256_cvtps_epi32(_mm256_mul_ps(x[v], inverse));
    // Packing works within 128-bit lanes: the last step puts groups of four back in order.
    const Int bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const Int order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<Int*>(out->q), _mm256_permutevar8x32_epi32(bytes, order));
    const Int sums = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    out->sum = _mm_cvtsi128_si32(half);
  }
};

#include "worker_proc/cpu/simd_quant.inc"

}  // namespace

const QuantKernelTable& Avx2QuantKernels() {
  static constexpr QuantKernelTable kTable = {"avx2", Gemm, GateUpSilu, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
