#include "worker_proc/cpu/quant_pack.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/checkpoint/half.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kGroupBytes = kPanelRows * 4;  // four bytes of each row of a panel
constexpr size_t kHalfBytes = 2;

size_t ValueBytes(const QuantFormat& format) {
  return static_cast<size_t>(kPanelRows) * kQuantBlock * format.bits / 8;
}

size_t PanelBytes(const QuantFormat& format, uint64_t in_features) {
  return in_features / kQuantBlock * format.block_bytes();
}

// A block of a row: its scale, its min if it has one, then its values, which keep their order.
// GGUF's signed bytes become unsigned by a zero point of 128.
void PackBlock(const QuantFormat& format, const uint8_t* block, uint32_t row, uint8_t* packed) {
  uint8_t* const scales = packed + ValueBytes(format);
  std::memcpy(scales + row * kHalfBytes, block, kHalfBytes);
  block += kHalfBytes;
  if (format.has_min) {
    std::memcpy(scales + (kPanelRows + row) * kHalfBytes, block, kHalfBytes);
    block += kHalfBytes;
  }
  const uint8_t flip = format.bits == 8 ? 0x80 : 0;
  const uint32_t groups = kQuantBlock * format.bits / 8 / 4;
  for (uint32_t j = 0; j < groups; ++j) {
    for (uint32_t i = 0; i < 4; ++i) {
      packed[j * kGroupBytes + row * 4 + i] = block[j * 4 + i] ^ flip;
    }
  }
}

void PackRow(const QuantFormat& format, const TensorView& view, uint64_t row, uint32_t panel_row,
             uint8_t* panel) {
  const uint8_t* block = view.data.data() + row * view.row_bytes();
  for (uint64_t b = 0; b < view.cols / kQuantBlock; ++b) {
    PackBlock(format, block, panel_row, panel);
    block += Traits(view.dtype).block_bytes;
    panel += format.block_bytes();
  }
}

}  // namespace

std::optional<QuantFormat> QuantFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return QuantFormat{4, false, 8};
    case DType::kQ4_1:
      return QuantFormat{4, true, 0};
    case DType::kQ8_0:
      return QuantFormat{8, false, 128};
    default:
      return std::nullopt;
  }
}

size_t PackedQuantBytes(const QuantFormat& format, uint64_t out_features, uint64_t in_features) {
  CHECK(in_features % kQuantBlock == 0);
  return (out_features + kPanelRows - 1) / kPanelRows * PanelBytes(format, in_features);
}

void PackQuantPanels(std::span<const WeightRows> rows, uint64_t panel_begin, uint64_t panel_end,
                     uint8_t* packed) {
  const TensorView& first = *rows.front().view;
  const std::optional<QuantFormat> format = QuantFormatOf(first.dtype);
  CHECK(format.has_value() && first.cols % kQuantBlock == 0);
  const size_t panel_bytes = PanelBytes(*format, first.cols);
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

double UnpackQuantWeight(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                         uint64_t row, uint64_t k) {
  const uint8_t* block = packed + row / kPanelRows * PanelBytes(format, in_features) +
                         k / kQuantBlock * format.block_bytes();
  const uint64_t panel_row = row % kPanelRows;
  uint64_t i = k % kQuantBlock;
  const bool high = format.bits == 4 && i >= kQuantBlock / 2;
  if (high) i -= kQuantBlock / 2;
  const uint8_t byte = block[i / 4 * kGroupBytes + panel_row * 4 + i % 4];
  const int value = format.bits == 8 ? byte : high ? byte >> 4 : byte & 0x0f;
  const auto half = [&](uint64_t index) {
    uint16_t bits;
    std::memcpy(&bits, block + ValueBytes(format) + index * kHalfBytes, kHalfBytes);
    return static_cast<double>(HalfToFloat(bits));
  };
  const double min = format.has_min ? half(kPanelRows + panel_row) : 0.0;
  return half(panel_row) * (value - format.zero_point) + min;
}

}  // namespace flotilla::cpu
