#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/half.h"

namespace flotilla {
namespace {

constexpr DTypeTraits kF32Traits{"F32", 1, 4};
constexpr DTypeTraits kF16Traits{"F16", 1, 2};
constexpr DTypeTraits kBF16Traits{"BF16", 1, 2};
constexpr DTypeTraits kQ4_0Traits{"Q4_0", 32, 18};
constexpr DTypeTraits kQ4_1Traits{"Q4_1", 32, 20};
constexpr DTypeTraits kQ8_0Traits{"Q8_0", 32, 34};

constexpr int kBlock = 32;

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

void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  for (int j = 0; j < kBlock; ++j) {
    out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
  }
}

template <void (*kDequantizeBlock)(const uint8_t*, float*)>
void DequantizeBlocks(const uint8_t* data, uint64_t num_blocks, uint32_t block_bytes, float* out) {
  for (uint64_t b = 0; b < num_blocks; ++b) {
    kDequantizeBlock(data + b * block_bytes, out + b * kBlock);
  }
}

}  // namespace

const DTypeTraits* FindDType(uint32_t dtype) {
  switch (dtype) {
    case static_cast<uint32_t>(DType::kF32):
      return &kF32Traits;
    case static_cast<uint32_t>(DType::kF16):
      return &kF16Traits;
    case static_cast<uint32_t>(DType::kBF16):
      return &kBF16Traits;
    case static_cast<uint32_t>(DType::kQ4_0):
      return &kQ4_0Traits;
    case static_cast<uint32_t>(DType::kQ4_1):
      return &kQ4_1Traits;
    case static_cast<uint32_t>(DType::kQ8_0):
      return &kQ8_0Traits;
    default:
      return nullptr;
  }
}

const DTypeTraits& Traits(DType dtype) {
  const DTypeTraits* traits = FindDType(static_cast<uint32_t>(dtype));
  CHECK(traits != nullptr);
  return *traits;
}

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
    case DType::kQ4_0:
      return DequantizeBlocks<DequantizeQ4_0>(data, num_blocks, traits.block_bytes, out);
    case DType::kQ4_1:
      return DequantizeBlocks<DequantizeQ4_1>(data, num_blocks, traits.block_bytes, out);
    case DType::kQ8_0:
      return DequantizeBlocks<DequantizeQ8_0>(data, num_blocks, traits.block_bytes, out);
  }
}

}  // namespace flotilla
