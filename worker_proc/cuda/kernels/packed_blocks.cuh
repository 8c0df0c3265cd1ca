// The blocks of packed matrices, a GGUF file's and of 8-bit floats, read 16 values at a time:
// PackedGroup<dtype> is one such group, made from where its block begins and which of the block's
// groups it is; Two gives two neighbours of it. The numbers are DequantizeRows', bit for bit: no
// product is contracted with a sum.
//
// Bytes: a pointer to global memory or a SharedSpan; blocks begin at even addresses. Threads: each
// thread its own values. Errors: none. Source: the formats are ggml's, as dequantize.cc has them.
#pragma once

#include <type_traits>

#include "common/checkpoint/dtype.h"
#include "worker_proc/cuda/kernels/packed_gemm.h"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda {

inline constexpr uint32_t kGroup = 16;  // values

// n, below 2^23, less `offset`: exact.
__device__ __forceinline__ float Number(uint32_t n, uint32_t offset) {
  return FloatOfBits(0x4b000000u | n) - static_cast<float>((1u << 23) + offset);
}

template <typename Bytes>
__device__ __forceinline__ float HalfAt(Bytes bytes, uint32_t at) {
  return HalfBitsToFloat(static_cast<uint16_t>(LoadTwo(bytes, at)));
}

// Q4_0, Q4_1, Q5_0, Q5_1: 32 values; fp16 d, perhaps fp16 m, perhaps 32 fifth bits, 16 bytes, whose
// low nibbles are the first group.
template <bool has_min, bool has_fifth, typename Bytes>
class NibbleGroup {
 public:
  static constexpr uint32_t kValues = 32;
  static constexpr uint32_t kHeader = has_min ? 4 : 2;
  static constexpr uint32_t kQuants = kHeader + (has_fifth ? 4 : 0);
  static constexpr uint32_t kBytes = kQuants + 16;

  __device__ NibbleGroup(Bytes block, uint32_t group)
      : quants_(block + kQuants), shift_(4 * group), d_(HalfAt(block, 0)) {
    if constexpr (has_min) min_ = HalfAt(block, 2);
    if constexpr (has_fifth) fifth_ = LoadTwo(block, kHeader + 2 * group);
  }
  __device__ void Two(uint32_t j, float (&v)[2]) const {
    const uint32_t bits = LoadTwo(quants_, j) >> shift_;
    for (uint32_t i = 0; i < 2; ++i) {
      uint32_t n = bits >> 8 * i & 15;
      if constexpr (has_fifth) n |= (fifth_ >> (j + i) & 1) << 4;
      v[i] = MulRounded(Number(n, has_min ? 0 : has_fifth ? 16 : 8), d_);
      if constexpr (has_min) v[i] = AddRounded(v[i], min_);
    }
  }

 private:
  const Bytes quants_;
  const uint32_t shift_;
  uint32_t fifth_ = 0;
  const float d_;
  float min_ = 0;
};

// Q8_0: 32 values; fp16 d, bytes with a sign.
template <typename Bytes>
class ByteGroup {
 public:
  static constexpr uint32_t kValues = 32;
  static constexpr uint32_t kBytes = 34;

  __device__ ByteGroup(Bytes block, uint32_t group)
      : quants_(block + (2 + kGroup * group)), d_(HalfAt(block, 0)) {}
  __device__ void Two(uint32_t j, float (&v)[2]) const {
    const uint32_t bits = LoadTwo(quants_, j) ^ 0x8080;  // 128 more, without a sign
    for (uint32_t i = 0; i < 2; ++i) v[i] = MulRounded(Number(bits >> 8 * i & 255, 128), d_);
  }

 private:
  const Bytes quants_;
  const float d_;
};

// Q4_K, Q5_K: 256 values in 8 blocks of two groups; fp16 d and dmin, 12 bytes of scales and mins of
// 6 bits (k_scales.h), perhaps 32 bytes of fifth bits, 32 bytes for each two blocks.
template <bool has_fifth, typename Bytes>
class KGroup {
 public:
  static constexpr uint32_t kValues = 256;
  static constexpr uint32_t kQuants = has_fifth ? 48 : 16;
  static constexpr uint32_t kBytes = kQuants + 128;

  __device__ KGroup(Bytes super_block, uint32_t group)
      : block_(group / 2),
        quants_(super_block + (kQuants + block_ / 2 * 32 + group % 2 * kGroup)),
        fifth_(super_block + (16 + group % 2 * kGroup)) {
    const auto packed = super_block + 4;
    uint32_t scale;
    uint32_t min;
    if (block_ < 4) {
      scale = packed[block_] & 63;
      min = packed[block_ + 4] & 63;
    } else {
      const uint32_t low = packed[block_ + 4];
      scale = (low & 15) | static_cast<uint32_t>(packed[block_ - 4]) >> 6 << 4;
      min = low >> 4 | static_cast<uint32_t>(packed[block_]) >> 6 << 4;
    }
    scale_ = MulRounded(HalfAt(super_block, 0), static_cast<float>(scale));
    min_ = MulRounded(HalfAt(super_block, 2), static_cast<float>(min));
  }
  __device__ void Two(uint32_t j, float (&v)[2]) const {
    const uint32_t bits = LoadTwo(quants_, j) >> block_ % 2 * 4;
    const uint32_t fifths = has_fifth ? LoadTwo(fifth_, j) >> block_ : 0;
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t n = (bits >> 8 * i & 15) | (fifths >> 8 * i & 1) << 4;
      v[i] = AddRounded(MulRounded(scale_, Number(n, 0)), -min_);
    }
  }

 private:
  const uint32_t block_;
  const Bytes quants_;
  const Bytes fifth_;
  float scale_;
  float min_;
};

// Q6_K: 256 values; the lower 4 bits, the upper 2, a scale with a sign for each group, fp16 d. Each
// half has 4 blocks: 64 bytes of nibbles (blocks 0 and 1 in the low ones) and 32 of upper bits.
template <typename Bytes>
class SixBitGroup {
 public:
  static constexpr uint32_t kValues = 256;
  static constexpr uint32_t kBytes = 210;

  __device__ SixBitGroup(Bytes super_block, uint32_t group)
      : block_(group / 2 % 4),
        low_(super_block + (group / 8 * 64 + block_ % 2 * 32 + group % 2 * kGroup)),
        high_(super_block + (128 + group / 8 * 32 + group % 2 * kGroup)) {
    const uint32_t scale = super_block[192 + group] ^ 0x80u;  // 128 more, without a sign
    scale_ = MulRounded(HalfAt(super_block, 208), Number(scale, 128));
  }
  __device__ void Two(uint32_t j, float (&v)[2]) const {
    const uint32_t lows = LoadTwo(low_, j) >> block_ / 2 * 4;
    const uint32_t highs = LoadTwo(high_, j) >> block_ * 2;
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t n = (lows >> 8 * i & 15) | (highs >> 8 * i & 3) << 4;
      v[i] = MulRounded(scale_, Number(n, 32));
    }
  }

 private:
  const uint32_t block_;
  const Bytes low_;
  const Bytes high_;
  float scale_;
};

// 8-bit floats (float8.h): their factor, their bytes. Widened to fp16, whose exponent is 8
// larger.
template <typename Bytes>
class Float8Group {
 public:
  static constexpr uint32_t kValues = kFloat8Values;
  static constexpr uint32_t kBytes = kFloat8Bytes;

  __device__ Float8Group(Bytes block, uint32_t group)
      : values_(block + (4 + kGroup * group)),
        factor_(FloatOfBits(LoadTwo(block, 0) | LoadTwo(block, 2) << 16)) {}
  __device__ void Two(uint32_t j, float (&v)[2]) const {
    const uint32_t bits = LoadTwo(values_, j);
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t byte = bits >> 8 * i & 255;
      const auto half = static_cast<uint16_t>((byte & 128) << 8 | (byte & 127) << 7);
      v[i] = MulRounded(HalfBitsToFloat(half) * 256, factor_);
    }
  }

 private:
  const Bytes values_;
  const float factor_;
};

// std::type_identity, which device code lacks.
template <typename T>
struct Is {
  using Type = T;
};

// clang-format off
template <DType dtype, typename Bytes>
auto GroupOf() {
  if constexpr (dtype == DType::kQ4_0) return Is<NibbleGroup<false, false, Bytes>>();
  else if constexpr (dtype == DType::kQ4_1) return Is<NibbleGroup<true, false, Bytes>>();
  else if constexpr (dtype == DType::kQ5_0) return Is<NibbleGroup<false, true, Bytes>>();
  else if constexpr (dtype == DType::kQ5_1) return Is<NibbleGroup<true, true, Bytes>>();
  else if constexpr (dtype == DType::kQ8_0) return Is<ByteGroup<Bytes>>();
  else if constexpr (dtype == DType::kQ4_K) return Is<KGroup<false, Bytes>>();
  else if constexpr (dtype == DType::kQ5_K) return Is<KGroup<true, Bytes>>();
  else if constexpr (dtype == DType::kF8E4M3) return Is<Float8Group<Bytes>>();
  else return Is<SixBitGroup<Bytes>>();
}
// clang-format on
template <DType dtype, typename Bytes>
using PackedGroup = typename decltype(GroupOf<dtype, Bytes>())::Type;

// Calls f with a constant that is the quantised type.
template <typename F>
void ForPacked(DType dtype, const F& f) {
  const auto call = [&]<DType d>() { f(std::integral_constant<DType, d>()); };
  switch (dtype) {
    case DType::kQ4_0:
      return call.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return call.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return call.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return call.template operator()<DType::kQ5_1>();
    case DType::kQ8_0:
      return call.template operator()<DType::kQ8_0>();
    case DType::kQ4_K:
      return call.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return call.template operator()<DType::kQ5_K>();
    case DType::kQ6_K:
      return call.template operator()<DType::kQ6_K>();
    case DType::kF8E4M3:
      return call.template operator()<DType::kF8E4M3>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;
  }
}

// The same, and with an element of the type that the values become.
template <typename F>
void ForPackedAs(DType dtype, Element type, const F& f) {
  ForPacked(dtype, [&](auto constant) {
    if (type == Element::kFloat16) {
      f(constant, Half{});
    } else {
      f(constant, BFloat16{});
    }
  });
}

}  // namespace flotilla::cuda
