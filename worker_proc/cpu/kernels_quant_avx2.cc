// Integer kernels for AVX2; called only where the CPU has AVX2, FMA and F16C.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"

struct Q {
  using Int = __m256i;
  // Of 16 registers: an accumulator for each half of a panel and token, both halves' weights, a
  // broadcast and a product. The float accumulators lie in memory.
  template <int kBits>
  static constexpr int kMaxTokens = kBits == 6 ? 4 : 6;

  static V::Reg LoadHalf(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V::Reg LoadBytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Int LoadInt(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static V::Reg ToFloat(Int x) { return _mm256_cvtepi32_ps(x); }
  static Int Set1Int(int32_t x) { return _mm256_set1_epi32(x); }
  static Int Sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  // With 4-bit weights, eight products of pairs stay within 8 * 2 * 15 * 127 = 30,480 in 16 bits;
  // with 5 bits four, 4 * 2 * 31 * 127 = 31,496, and with 6 two, 2 * 2 * 63 * 127 = 32,004.
  // With 8-bit weights the activations are split instead, q = 16 * high + low with both in -8 … 8,
  // and summed apart: 8 * 2 * 255 * 8 = 32,640.
  template <int kBits>
  struct TileQ {
    int8_t q[kBits / 4][kQuantBlock];  // low, high
  };
  template <int kBits>
  static void PackQ(const int8_t* q, TileQ<kBits>* out) {
    __builtin_memcpy(out->q, q, kQuantBlock);
  }
  static void PackQ(const int8_t* q, TileQ<8>* out) {
    const Int x = LoadInt(q);
    const Int nibble = _mm256_set1_epi8(0x0f);
    const Int eight = _mm256_set1_epi8(8);
    // high = floor(q / 16), and one more where the rest is 8 or more.
    const Int floor = _mm256_sub_epi8(
        _mm256_and_si256(_mm256_srli_epi16(_mm256_xor_si256(x, _mm256_set1_epi8(-128)), 4), nibble),
        eight);
    const Int carry = _mm256_and_si256(_mm256_srli_epi16(x, 3), _mm256_set1_epi8(1));
    const Int low = _mm256_sub_epi8(_mm256_and_si256(_mm256_add_epi8(x, eight), nibble), eight);
    _mm256_storeu_si256(reinterpret_cast<Int*>(out->q[0]), low);
    _mm256_storeu_si256(reinterpret_cast<Int*>(out->q[1]), _mm256_add_epi8(floor, carry));
  }

  // Keeps the compiler from turning a chain of sums into a tree, whose leaves would all be alive at
  // once and spill.
  static Int InOrder(Int x) {
    asm("" : "+x"(x));
    return x;
  }

  // sum[t] (+)= four k of the weights times the same four of each token, in pairs of 16 bits; `k`
  // counts from the first of tile[0].q[part].
  template <int kTokens, typename TileQ>
  static void DotQuad(const Int* weights, const TileQ* tile, int part, int k, bool first,
                      Int (*sum)[2]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      int32_t four;
      __builtin_memcpy(&four, tile[t].q[part] + k, sizeof(four));
      const Int quad = _mm256_set1_epi32(four);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const Int pairs = _mm256_maddubs_epi16(weights[v], quad);
        sum[t][v] = first ? pairs : InOrder(_mm256_add_epi16(sum[t][v], pairs));
      }
    }
  }

  template <int kTokens>
  static void Dot4(const uint8_t* block, const TileQ<4>* tile, Int (*dot)[2]) {
    const Int mask = _mm256_set1_epi8(0x0f);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Int raw[2] = {LoadInt(block + j * 64), LoadInt(block + j * 64 + 32)};
      const Int low[2] = {_mm256_and_si256(raw[0], mask), _mm256_and_si256(raw[1], mask)};
      DotQuad<kTokens>(low, tile, 0, 4 * j, j == 0, dot);
      const Int high[2] = {_mm256_and_si256(_mm256_srli_epi16(raw[0], 4), mask),
                           _mm256_and_si256(_mm256_srli_epi16(raw[1], 4), mask)};
      DotQuad<kTokens>(high, tile, 0, 16 + 4 * j, false, dot);
    }
    const Int ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) dot[t][v] = _mm256_madd_epi16(dot[t][v], ones);
    }
  }

  template <int kTokens>
  static void Dot8(const uint8_t* block, const TileQ<8>* tile, Int (*dot)[2]) {
    // Few tokens take both parts with each load of the weights; of many, all sums would be alive at
    // once.
    constexpr int kParts = kTokens <= 3 ? 2 : 1;
    const Int factors[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(16)};
#pragma GCC unroll 2
    for (int part = 0; part < 2; part += kParts) {
      if constexpr (kParts == 1) asm("" : "+r"(block));  // or the loads would be shared after all
      Int sum[kParts][kTokens][2];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const Int weights[2] = {LoadInt(block + j * 64), LoadInt(block + j * 64 + 32)};
#pragma GCC unroll 2
        for (int i = 0; i < kParts; ++i) {
          DotQuad<kTokens>(weights, tile, part + i, 4 * j, j == 0, sum[i]);
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kParts; ++i) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) {
            const Int wide = _mm256_madd_epi16(sum[i][t][v], factors[part + i]);
            dot[t][v] = part + i == 0 ? wide : _mm256_add_epi32(dot[t][v], wide);
          }
        }
      }
    }
  }

  // x << n, to the right if n < 0, by 16 bits at a time: what crosses from byte to byte is masked.
  static Int Shift(Int x, int n) {
    return n >= 0 ? _mm256_slli_epi16(x, n) : _mm256_srli_epi16(x, -n);
  }
  // Four k of weights with 5 or 6 bits, from 4 j on, and four from 16 + 4 j on; of half a panel
  // each.
  template <int kBits>
  static void Quads(const uint8_t* block, int j, Int* low, Int* high) {
    const Int low_bits = _mm256_set1_epi8(kBits == 5 ? 0x10 : 0x30);
    const Int high_bits = _mm256_set1_epi8(kBits == 5 ? 0x08 : 0x0c);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Int raw = LoadInt(block + j * 64 + v * 32);
      const Int plane = LoadInt(block + (kBits == 5 ? 4 : 4 + j / 2) * 64 + v * 32);
      const Int bits = Shift(plane, kBits == 5 ? 3 - 2 * j : 2 - j % 2 * 4);
      low[v] = _mm256_or_si256(_mm256_and_si256(raw, _mm256_set1_epi8(0x0f)),
                               _mm256_and_si256(bits, low_bits));
      high[v] = _mm256_or_si256(_mm256_and_si256(raw, _mm256_set1_epi8(static_cast<char>(0xf0))),
                                _mm256_and_si256(bits, high_bits));
      high[v] = _mm256_srli_epi16(high[v], 8 - kBits);
    }
  }

  template <int kTokens>
  static void Dot5(const uint8_t* block, const TileQ<5>* tile, Int (*dot)[2]) {
    const Int ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      Int sum[kTokens][2];
#pragma GCC unroll 2
      for (int j = 2 * part; j < 2 * part + 2; ++j) {
        Int low[2];
        Int high[2];
        Quads<5>(block, j, low, high);
        DotQuad<kTokens>(low, tile, 0, 4 * j, j % 2 == 0, sum);
        DotQuad<kTokens>(high, tile, 0, 16 + 4 * j, false, sum);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const Int wide = _mm256_madd_epi16(sum[t][v], ones);
          dot[t][v] = part == 0 ? wide : _mm256_add_epi32(dot[t][v], wide);
        }
      }
    }
  }

  // Twice four k of the weights times the same of each token, and times a sub-scale: pairs of
  // bytes, then of 16 bits.
  template <int kTokens>
  static void DotScaled(const Int* first, const Int* second, const Int* scales,
                        const TileQ<6>* tile, int k, Int (*dot)[2]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      int32_t four[2];
      __builtin_memcpy(four, tile[t].q[0] + k, sizeof(four));
      const Int q[2] = {_mm256_set1_epi32(four[0]), _mm256_set1_epi32(four[1])};
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const Int pairs = _mm256_add_epi16(_mm256_maddubs_epi16(first[v], q[0]),
                                           _mm256_maddubs_epi16(second[v], q[1]));
        dot[t][v] = InOrder(_mm256_add_epi32(dot[t][v], _mm256_madd_epi16(pairs, scales[v])));
      }
    }
  }

  // sub_scales: sc0 and sc1 of each row; offset: HalfSums of each token.
  template <int kTokens>
  static void Dot6(const uint8_t* block, const uint8_t* sub_scales, const TileQ<6>* tile,
                   const int32_t* offset, Int (*dot)[2]) {
    Int first[2];   // sc0 twice, of each row
    Int second[2];  // sc1
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Int both = _mm256_cvtepi8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(sub_scales + v * 16)));
      first[v] = _mm256_blend_epi16(both, _mm256_slli_epi32(both, 16), 0xaa);
      second[v] = _mm256_blend_epi16(_mm256_srli_epi32(both, 16), both, 0xaa);
      const Int twice = _mm256_slli_epi16(both, 1);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) dot[t][v] = _mm256_madd_epi16(twice, Set1Int(offset[t]));
    }
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
      Int low[2][2];
      Int high[2][2];
      Quads<6>(block, j, low[0], high[0]);
      Quads<6>(block, j + 1, low[1], high[1]);
      DotScaled<kTokens>(low[0], low[1], first, tile, 4 * j, dot);
      DotScaled<kTokens>(high[0], high[1], second, tile, 16 + 4 * j, dot);
    }
  }

  template <int kBits, int kTokens>
  static void Dot(const uint8_t* block, const TileQ<kBits>* tile, Int (*dot)[2]) {
    if constexpr (kBits == 4) {
      Dot4<kTokens>(block, tile, dot);
    } else if constexpr (kBits == 5) {
      Dot5<kTokens>(block, tile, dot);
    } else {
      Dot8<kTokens>(block, tile, dot);
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
  static constexpr QuantKernelTable kTable = {"avx2", Gemm, GateUp, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
