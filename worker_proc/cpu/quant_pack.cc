#include "worker_proc/cpu/quant_pack.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/checkpoint/half.h"
#include "common/checkpoint/k_scales.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kGroupBytes = kPanelRows * 4;  // four bytes of each row of a panel
constexpr size_t kHalfBytes = 2;

// `count` bytes of a row, in fours, to where a panel has them.
void PackBytes(const uint8_t* bytes, uint32_t count, uint32_t row, uint8_t* packed) {
  for (uint32_t j = 0; j < count / 4; ++j) {
    std::memcpy(packed + j * kGroupBytes + row * 4, bytes + j * 4, 4);
  }
}

void PackHalf(const uint8_t* half, uint32_t row, uint8_t* packed) {
  std::memcpy(packed + row * kHalfBytes, half, kHalfBytes);
}

// 32 values of 4 + kCount bits, one a byte.
template <uint32_t kCount>
void PackWide(const uint8_t* u, uint32_t row, uint8_t* packed) {
  uint8_t nibbles[kQuantBlock / 2];
  uint8_t others[kQuantBlock / 2];  // the bits that do not lie in nibbles
  for (uint32_t i = 0; i < kQuantBlock / 2; ++i) {
    const uint32_t low = u[i];
    const uint32_t high = u[i + kQuantBlock / 2];
    nibbles[i] = static_cast<uint8_t>((low & 0x0f) | (high >> kCount << 4));
    others[i] = static_cast<uint8_t>((low >> 4 << kCount) | (high & ((1u << kCount) - 1)));
  }
  uint32_t quads[4];  // four bytes each, shifted at once: nothing crosses from byte to byte
  std::memcpy(quads, others, sizeof(quads));
  uint32_t planes[kCount] = {};
  for (uint32_t j = 0; j < 4; ++j) planes[j * kCount / 4] |= quads[j] << (j * 2 * kCount % 8);
  PackBytes(nibbles, sizeof(nibbles), row, packed);
  PackBytes(reinterpret_cast<const uint8_t*>(planes), sizeof(planes), row,
            packed + 4 * kGroupBytes);
}

// Bit i of `bits` in byte i.
uint64_t SpreadBits(uint8_t bits) {
  const uint64_t one_each = 0x8040201008040201u & (bits * 0x0101010101010101u);
  return ((one_each + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
}

// Q5_0's and Q5_1's values: a word whose bit k is the fifth of value k, then the nibbles.
void UnpackFifthBits(const uint8_t* values, uint8_t* u) {
  const uint8_t* nibbles = values + 4;
  for (uint32_t i = 0; i < kQuantBlock / 2; ++i) {
    u[i] = nibbles[i] & 0x0f;
    u[i + kQuantBlock / 2] = nibbles[i] >> 4;
  }
  for (uint32_t i = 0; i < kQuantBlock / 8; ++i) {
    uint64_t eight;
    std::memcpy(&eight, u + i * 8, sizeof(eight));
    eight |= SpreadBits(values[i]) << 4;
    std::memcpy(u + i * 8, &eight, sizeof(eight));
  }
}

// A block of a row: its scale, its min if it has one, then its values. GGUF's signed bytes become
// unsigned by a zero point of 128.
void PackBlock(const QuantFormat& format, const uint8_t* block, uint32_t row, uint8_t* packed) {
  uint8_t* const scales = packed + format.value_bytes();
  PackHalf(block, row, scales);
  block += kHalfBytes;
  if (format.has_min) {
    PackHalf(block, row, scales + kPanelRows * kHalfBytes);
    block += kHalfBytes;
  }
  if (format.bits == 4) return PackBytes(block, kQuantBlock / 2, row, packed);
  uint8_t u[kQuantBlock];
  if (format.bits == 8) {
    for (uint32_t k = 0; k < kQuantBlock; ++k) u[k] = block[k] ^ 0x80;
    return PackBytes(u, kQuantBlock, row, packed);
  }
  UnpackFifthBits(block, u);
  PackWide<1>(u, row, packed);
}

// 32 values of a K type, one a byte.
void PackValues(const QuantFormat& format, const uint8_t* u, uint32_t row, uint8_t* packed) {
  if (format.bits == 5) return PackWide<1>(u, row, packed);
  if (format.bits == 6) return PackWide<2>(u, row, packed);
  uint8_t nibbles[kQuantBlock / 2];
  for (uint32_t i = 0; i < kQuantBlock / 2; ++i) {
    nibbles[i] = static_cast<uint8_t>(u[i] | (u[i + kQuantBlock / 2] << 4));
  }
  PackBytes(nibbles, sizeof(nibbles), row, packed);
}

// A super-block of a row of Q4_K or Q5_K (their layouts: common/checkpoint/dequantize.cc).
void PackQ45_K(const QuantFormat& format, const uint8_t* block, uint32_t row, uint8_t* packed) {
  PackHalf(block, row, packed);
  const uint8_t dmin[kHalfBytes] = {block[2], static_cast<uint8_t>(block[3] ^ 0x80)};
  PackHalf(dmin, row, packed + kPanelRows * kHalfBytes);
  const uint8_t* fifth = block + 16;
  const uint8_t* quants = format.bits == 5 ? fifth + kQuantBlock : fifth;
  for (uint32_t b = 0; b < kSuperBlocks; ++b) {
    const KScaleMin sub = UnpackKScaleMin(block + 4, static_cast<int>(b));
    uint8_t* const sub_scales = packed + format.half_bytes() + b * kPanelRows * 2;
    sub_scales[row] = sub.scale;
    sub_scales[kPanelRows + row] = sub.min;
    uint8_t u[kQuantBlock];
    for (uint32_t k = 0; k < kQuantBlock; ++k) {
      u[k] = (quants[b / 2 * kQuantBlock + k] >> (b % 2 * 4)) & 0x0f;
      if (format.bits == 5) u[k] |= static_cast<uint8_t>(((fifth[k] >> b) & 1) << 4);
    }
    PackValues(format, u, row, packed + format.scale_bytes() + b * format.value_bytes());
  }
}

void PackQ6_K(const QuantFormat& format, const uint8_t* block, uint32_t row, uint8_t* packed) {
  const uint8_t* const scales = block + 192;
  PackHalf(block + 208, row, packed);
  for (uint32_t b = 0; b < kSuperBlocks; ++b) {
    std::memcpy(packed + format.half_bytes() + (b * kPanelRows + row) * 2, scales + b * 2, 2);
    const uint8_t* const low = block + b / 4 * 64 + b % 2 * kQuantBlock;
    const uint8_t* const high = block + 128 + b / 4 * kQuantBlock;
    uint8_t u[kQuantBlock];
    for (uint32_t k = 0; k < kQuantBlock; ++k) {
      const uint32_t upper = (high[k] >> (b % 4 * 2)) & 3u;
      u[k] = static_cast<uint8_t>(((low[k] >> (b % 4 / 2 * 4)) & 0x0f) | (upper << 4));
    }
    PackValues(format, u, row, packed + format.scale_bytes() + b * format.value_bytes());
  }
}

void PackRow(const QuantFormat& format, const TensorView& view, uint64_t row, uint32_t panel_row,
             uint8_t* panel) {
  const uint8_t* block = view.data.data() + row * view.row_bytes();
  const DTypeTraits& traits = Traits(view.dtype);
  for (uint64_t b = 0; b < view.cols / traits.block_values; ++b) {
    if (!format.super_blocks) {
      PackBlock(format, block, panel_row, panel);
    } else if (format.bits == 6) {
      PackQ6_K(format, block, panel_row, panel);
    } else {
      PackQ45_K(format, block, panel_row, panel);
    }
    block += traits.block_bytes;
    panel += format.group_bytes();
  }
}

// The integer of one k of a block.
int UnpackValue(const QuantFormat& format, const uint8_t* values, uint64_t row, uint64_t k) {
  // Bits [first, first + count) of byte k % 4 of the row in a group of 64 bytes.
  const auto bits = [&](uint64_t group, uint64_t first, uint64_t count) {
    return (values[group * kGroupBytes + row * 4 + k % 4] >> first) & ((1 << count) - 1);
  };
  const uint64_t j = k % 16 / 4;
  if (format.bits == 8) return bits(k / 4, 0, 8);
  if (format.bits == 4) return bits(j, k / 16 * 4, 4);
  const uint64_t count = format.bits - 4;
  const uint64_t plane = 4 + j * count / 4;
  const uint64_t first = j * 2 * count % 8;
  if (k < 16) return bits(j, 0, 4) | bits(plane, first + count, count) << 4;
  return bits(j, 4, 4) << count | bits(plane, first, count);
}

// A row's part of a block of its panel.
struct RowBlock {
  const uint8_t* values;  // the panel's
  float scale[2];         // of the first and of the last 16 k; exact
  float min = 0;          // exact
};

RowBlock FindRowBlock(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                      uint64_t row, uint64_t block) {
  const uint8_t* const group = packed + row / kPanelRows * format.panel_bytes(in_features) +
                               block / format.group_blocks() * format.group_bytes();
  block %= format.group_blocks();
  row %= kPanelRows;
  const uint8_t* const values = group + block * format.value_bytes();
  const uint8_t* const scales = format.super_blocks ? group : values + format.value_bytes();
  const auto half = [&](uint64_t index) {
    uint16_t bits;
    std::memcpy(&bits, scales + index * kHalfBytes, kHalfBytes);
    return HalfToFloat(bits);
  };
  const float scale = half(row);
  const float min = format.has_min ? half(kPanelRows + row) : 0;
  if (!format.super_blocks) return {values, {scale, scale}, min};
  const uint8_t* const sub = group + format.half_bytes() + block * kPanelRows * 2;
  RowBlock found = {values + format.scale_bytes(), {scale, scale}, min};
  for (uint64_t half16 = 0; half16 < 2; ++half16) {
    found.scale[half16] *=
        static_cast<float>(format.has_min ? sub[row] : static_cast<int8_t>(sub[row * 2 + half16]));
  }
  if (format.has_min) found.min *= static_cast<float>(sub[kPanelRows + row]);
  return found;
}

}  // namespace

std::optional<QuantFormat> QuantFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return QuantFormat{4, false, 8, false};
    case DType::kQ4_1:
      return QuantFormat{4, true, 0, false};
    case DType::kQ5_0:
      return QuantFormat{5, false, 16, false};
    case DType::kQ5_1:
      return QuantFormat{5, true, 0, false};
    case DType::kQ8_0:
      return QuantFormat{8, false, 128, false};
    case DType::kQ4_K:
      return QuantFormat{4, true, 0, true};
    case DType::kQ5_K:
      return QuantFormat{5, true, 0, true};
    case DType::kQ6_K:
      return QuantFormat{6, false, 32, true};
    default:
      return std::nullopt;
  }
}

size_t PackedQuantBytes(const QuantFormat& format, uint64_t out_features, uint64_t in_features) {
  CHECK(in_features % (kQuantBlock * format.group_blocks()) == 0);
  return (out_features + kPanelRows - 1) / kPanelRows * format.panel_bytes(in_features);
}

void PackQuantPanels(std::span<const WeightRows> rows, uint64_t panel_begin, uint64_t panel_end,
                     uint8_t* packed) {
  const TensorView& first = *rows.front().view;
  const std::optional<QuantFormat> format = QuantFormatOf(first.dtype);
  CHECK(format.has_value() && first.cols % (kQuantBlock * format->group_blocks()) == 0);
  const size_t panel_bytes = format->panel_bytes(first.cols);
  // Rows past the last one are zero: zero scales.
  std::memset(packed + panel_begin * panel_bytes, 0, (panel_end - panel_begin) * panel_bytes);
  uint64_t part_begin = 0;  // the matrix's row where a part begins
  for (const WeightRows& part : rows) {
    CHECK(part.view->dtype == first.dtype && part.view->cols == first.cols);
    CHECK(part.begin <= part.end && part.end <= part.view->rows);
    CHECK(part.view->data.size() == part.view->rows * part.view->row_bytes());
    const uint64_t part_end = part_begin + (part.end - part.begin);
    const uint64_t begin = std::max(part_begin, panel_begin * kPanelRows);
    const uint64_t end = std::min(part_end, panel_end * kPanelRows);
    for (uint64_t row = begin; row < end; ++row) {
      PackRow(*format, *part.view, part.begin + (row - part_begin),
              static_cast<uint32_t>(row % kPanelRows), packed + row / kPanelRows * panel_bytes);
    }
    part_begin = part_end;
  }
}

void UnpackQuantRow(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                    uint64_t row, float* out) {
  for (uint64_t block = 0; block < in_features / kQuantBlock; ++block) {
    const RowBlock at = FindRowBlock(format, packed, in_features, row, block);
    for (uint64_t k = 0; k < kQuantBlock; ++k) {
      const int value = UnpackValue(format, at.values, row % kPanelRows, k) - format.zero_point;
      const float product = static_cast<float>(value) * at.scale[k / (kQuantBlock / 2)];
      *out++ = format.has_min ? product + at.min : product;
    }
  }
}

double UnpackQuantWeight(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                         uint64_t row, uint64_t k) {
  const RowBlock at = FindRowBlock(format, packed, in_features, row, k / kQuantBlock);
  k %= kQuantBlock;
  const int value = UnpackValue(format, at.values, row % kPanelRows, k) - format.zero_point;
  return static_cast<double>(at.scale[k / (kQuantBlock / 2)]) * value + at.min;
}

}  // namespace flotilla::cpu
