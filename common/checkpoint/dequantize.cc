#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/float8.h"
#include "common/checkpoint/half.h"
#include "common/checkpoint/k_scales.h"

namespace flotilla {
namespace {

constexpr int kBlock = 32;
constexpr int kSuperBlock = 256;

inline float LoadHalf(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

// The upper half of a float.
inline float LoadBFloat16(const uint8_t* bytes) {
  uint16_t upper;
  std::memcpy(&upper, bytes, sizeof(upper));
  return std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
}

// Blocks of 4-bit values keep value j in the low nibble of byte j, value j + 16 in the high one.
void DequantizeQ4_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const uint8_t* quants = block + 2;
  for (int j = 0; j < kBlock / 2; ++j) {
    out[j] = static_cast<float>((quants[j] & 0x0f) - 8) * d;
    out[j + kBlock / 2] = static_cast<float>((quants[j] >> 4) - 8) * d;
  }
}

void DequantizeQ4_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint8_t* quants = block + 4;
  for (int j = 0; j < kBlock / 2; ++j) {
    out[j] = static_cast<float>(quants[j] & 0x0f) * d + m;
    out[j + kBlock / 2] = static_cast<float>(quants[j] >> 4) * d + m;
  }
}

// The fifth bit of value j is bit j of a word before the others.
inline uint32_t LoadHighBits(const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

inline int FifthBit(uint32_t high, int j) { return static_cast<int>((high >> j) & 1) << 4; }

void DequantizeQ5_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const uint32_t high = LoadHighBits(block + 2);
  const uint8_t* quants = block + 6;
  for (int j = 0; j < kBlock / 2; ++j) {
    const int k = j + kBlock / 2;
    out[j] = static_cast<float>(((quants[j] & 0x0f) | FifthBit(high, j)) - 16) * d;
    out[k] = static_cast<float>(((quants[j] >> 4) | FifthBit(high, k)) - 16) * d;
  }
}

void DequantizeQ5_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint32_t high = LoadHighBits(block + 4);
  const uint8_t* quants = block + 8;
  for (int j = 0; j < kBlock / 2; ++j) {
    const int k = j + kBlock / 2;
    out[j] = static_cast<float>((quants[j] & 0x0f) | FifthBit(high, j)) * d + m;
    out[k] = static_cast<float>((quants[j] >> 4) | FifthBit(high, k)) * d + m;
  }
}

void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  for (int j = 0; j < kBlock; ++j) {
    out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
  }
}

// A super-block of Q4_K and Q5_K: fp16 d and dmin, 8 scales and 8 mins of 6 bits in 12 bytes, for
// Q5_K the fifth bits (byte j: of value j of block b in bit b), then the nibbles: 32 bytes for each
// two blocks, the first in the low ones.
template <bool kFifthBit>
void DequantizeQ45_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const uint8_t* fifth = block + 16;
  const uint8_t* quants = fifth + (kFifthBit ? kBlock : 0);
  for (int b = 0; b < kSuperBlock / kBlock; ++b) {
    const KScaleMin sub = UnpackKScaleMin(block + 4, b);
    const float scale = d * static_cast<float>(sub.scale);
    const float min = dmin * static_cast<float>(sub.min);
    for (int j = 0; j < kBlock; ++j) {
      int q = b % 2 == 0 ? quants[b / 2 * kBlock + j] & 0x0f : quants[b / 2 * kBlock + j] >> 4;
      if (kFifthBit) q |= ((fifth[j] >> b) & 1) << 4;
      *out++ = scale * static_cast<float>(q) - min;
    }
  }
}

// A super-block of Q6_K: the lower 4 bits, the upper 2, 16 signed scales of 16 values each, fp16 d.
// Each half has 4 blocks: 64 bytes of nibbles (blocks 0 and 1 in the low ones, 2 and 3 in the high
// ones) and 32 bytes of the upper bits (block b's from bit 2 b on).
void DequantizeQ6_K(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 192;
  const float d = LoadHalf(block + 208);
  for (int i = 0; i < kSuperBlock; i += kBlock / 2) {
    const int b = i / kBlock;
    const uint8_t* low = block + b / 4 * 64 + b % 2 * kBlock + i % kBlock;
    const uint8_t* high = block + 128 + b / 4 * kBlock + i % kBlock;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    for (int j = 0; j < kBlock / 2; ++j) {
      const int nibble = (low[j] >> (b % 4 / 2 * 4)) & 0x0f;
      const int q = (nibble | (((high[j] >> (b % 4 * 2)) & 3) << 4)) - 32;
      *out++ = scale * static_cast<float>(q);
    }
  }
}

template <void (*kDequantizeBlock)(const uint8_t*, float*)>
void DequantizeBlocks(const uint8_t* data, uint64_t num_blocks, const DTypeTraits& traits,
                      float* out) {
  for (uint64_t b = 0; b < num_blocks; ++b) {
    kDequantizeBlock(data + b * traits.block_bytes, out + b * traits.block_values);
  }
}

}  // namespace

const DTypeTraits* FindDType(uint32_t dtype) {
  static constexpr DTypeTraits kTraits[] = {{"F32", 1, 4},
                                            {"F16", 1, 2},
                                            {"Q4_0", 32, 18},
                                            {"Q4_1", 32, 20},
                                            {},
                                            {},
                                            {"Q5_0", 32, 22},
                                            {"Q5_1", 32, 24},
                                            {"Q8_0", 32, 34},
                                            {},
                                            {},
                                            {},
                                            {"Q4_K", 256, 144},
                                            {"Q5_K", 256, 176},
                                            {"Q6_K", 256, 210}};
  static constexpr DTypeTraits kBF16Traits = {"BF16", 1, 2};
  if (dtype == static_cast<uint32_t>(DType::kBF16)) return &kBF16Traits;
  if (dtype >= std::size(kTraits) || kTraits[dtype].name == nullptr) return nullptr;
  return &kTraits[dtype];
}

const DTypeTraits& Traits(DType dtype) {
  static constexpr DTypeTraits kF8E4M3Traits = {"F8_E4M3", 1, 1};
  if (dtype == DType::kF8E4M3) return kF8E4M3Traits;
  const DTypeTraits* traits = FindDType(static_cast<uint32_t>(dtype));
  CHECK(traits != nullptr);
  return *traits;
}

namespace {

void DequantizeFloat8(const TensorView& view, uint64_t row_begin, uint64_t row_end, float* out) {
  CHECK(view.scales != nullptr);
  const ScaleGrid& grid = *view.scales;
  for (uint64_t row = row_begin; row < row_end; ++row) {
    const uint8_t* values = view.data.data() + row * view.cols;
    uint64_t c = 0;
    for (const float factor : grid.RowFactors(row, view.cols)) {
      const uint64_t end = std::min(view.cols, c + grid.block_cols);
      for (; c < end; ++c) *out++ = E4M3ToFloat(values[c]) * factor;
    }
  }
}

}  // namespace

void DequantizeRows(const TensorView& view, uint64_t row_begin, uint64_t row_end, float* out) {
  CHECK(row_begin <= row_end && row_end <= view.rows);
  CHECK(view.data.size() == view.rows * view.row_bytes());
  const DTypeTraits& traits = Traits(view.dtype);
  const uint8_t* data = view.data.data() + row_begin * view.row_bytes();
  const uint64_t num_values = (row_end - row_begin) * view.cols;
  const uint64_t num_blocks = num_values / traits.block_values;
  switch (view.dtype) {
    case DType::kF32:
      if (num_values > 0) std::memcpy(out, data, num_values * sizeof(float));
      return;
    case DType::kF16:
      for (uint64_t i = 0; i < num_values; ++i) out[i] = LoadHalf(data + 2 * i);
      return;
    case DType::kBF16:
      for (uint64_t i = 0; i < num_values; ++i) out[i] = LoadBFloat16(data + 2 * i);
      return;
    case DType::kF8E4M3:
      return DequantizeFloat8(view, row_begin, row_end, out);
    case DType::kQ4_0:
      return DequantizeBlocks<DequantizeQ4_0>(data, num_blocks, traits, out);
    case DType::kQ4_1:
      return DequantizeBlocks<DequantizeQ4_1>(data, num_blocks, traits, out);
    case DType::kQ5_0:
      return DequantizeBlocks<DequantizeQ5_0>(data, num_blocks, traits, out);
    case DType::kQ5_1:
      return DequantizeBlocks<DequantizeQ5_1>(data, num_blocks, traits, out);
    case DType::kQ8_0:
      return DequantizeBlocks<DequantizeQ8_0>(data, num_blocks, traits, out);
    case DType::kQ4_K:
      return DequantizeBlocks<DequantizeQ45_K<false>>(data, num_blocks, traits, out);
    case DType::kQ5_K:
      return DequantizeBlocks<DequantizeQ45_K<true>>(data, num_blocks, traits, out);
    case DType::kQ6_K:
      return DequantizeBlocks<DequantizeQ6_K>(data, num_blocks, traits, out);
  }
}

}  // namespace flotilla
