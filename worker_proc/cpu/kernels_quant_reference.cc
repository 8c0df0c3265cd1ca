// The oracle of the integer kernels: every kernel as plain loops, to be read. Compiled for
// x86-64-v3 so that Fma and the conversion of fp16 are one instruction each; the compiler may
// vectorise what it likes, as no reordering of floats is allowed to it.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

// a*b + c, rounded once.
inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// ---- Activations ------------------------------------------------------------------------------

void QuantizeBlock(const float* x, ActBlock* out) {
  uint32_t max_bits = 0;  // without the sign, floats order as their bits do: a NaN is the largest
  for (uint32_t i = 0; i < kQuantBlock; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x[i], sizeof(bits));
    bits &= 0x7fffffffu;
    max_bits = max_bits > bits ? max_bits : bits;
  }
  float max;
  __builtin_memcpy(&max, &max_bits, sizeof(max));
  *out = ActBlock{};
  if (max_bits >= 0x7f800000u) {
    out->scale = __builtin_nanf("");
    return;
  }
  if (max < kMinActMax) return;
  out->scale = max / 127.0f;
  const float inverse = 127.0f / max;
  for (uint32_t i = 0; i < kQuantBlock; ++i) {
    const auto q = static_cast<int32_t>(__builtin_rintf(x[i] * inverse));
    out->q[i] = static_cast<int8_t>(q);
    out->sum += q;
  }
}

void Quantize(const float* x, uint32_t rows, uint32_t cols, ActBlock* out) {
  const size_t blocks = static_cast<size_t>(rows) * (cols / kQuantBlock);
  for (size_t b = 0; b < blocks; ++b) QuantizeBlock(x + b * kQuantBlock, out + b);
}

// As the float kernel's: 16 lanes (column mod 16), folded in one order.
float Rms(const float* x, uint32_t cols, float eps) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < cols; ++i) lanes[i % 16] = Fma(x[i], x[i], lanes[i % 16]);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return __builtin_sqrtf(lanes[0] / static_cast<float>(cols) + eps);
}

void RmsNorm(const RmsNormQuantArgs& a) {
  for (uint32_t t = 0; t < a.rows; ++t) {
    const float* x = a.x + static_cast<size_t>(t) * a.cols;
    if (a.residual != nullptr) {
      float* residual = a.residual + static_cast<size_t>(t) * a.cols;
      for (uint32_t i = 0; i < a.cols; ++i) residual[i] += x[i];
      x = residual;
    }
    const float scale = 1.0f / Rms(x, a.cols, a.eps);
    for (uint32_t i = 0; i < a.cols; i += kQuantBlock) {
      float normed[kQuantBlock];
      for (uint32_t j = 0; j < kQuantBlock; ++j) normed[j] = x[i + j] * scale * a.weight[i + j];
      QuantizeBlock(normed, a.out + (static_cast<size_t>(t) * a.cols + i) / kQuantBlock);
    }
  }
}

// ---- Weights ----------------------------------------------------------------------------------

// The unsigned integers of one row of a panel's block.
void UnpackRow(const QuantFormat& format, const uint8_t* block, uint32_t row, uint8_t* u) {
  if (format.bits == 8) {
    for (uint32_t k = 0; k < kQuantBlock; ++k) u[k] = block[k / 4 * 64 + row * 4 + k % 4];
    return;
  }
  const uint32_t count = format.bits - 4;  // of the bits that do not lie in nibbles
  const uint32_t mask = (1u << count) - 1;
  for (uint32_t i = 0; i < kQuantBlock / 2; ++i) {
    const uint32_t j = i / 4;
    const uint32_t at = row * 4 + i % 4;
    uint32_t low = block[j * 64 + at] & 0x0f;
    uint32_t high = block[j * 64 + at] >> 4;
    if (count > 0) {
      const uint32_t plane = block[(4 + j * count / 4) * 64 + at];
      const uint32_t bits = plane >> (j * 2 * count % 8);
      low |= ((bits >> count) & mask) << 4;
      high = high << count | (bits & mask);
    }
    u[i] = static_cast<uint8_t>(low);
    u[i + kQuantBlock / 2] = static_cast<uint8_t>(high);
  }
}

float LoadHalf(const uint8_t* from) {
  uint16_t half;
  __builtin_memcpy(&half, from, sizeof(half));
  return _cvtsh_ss(half);
}

// The integers of 16 k, from `k` on.
int32_t DotHalf(const QuantFormat& format, const uint8_t* u, const ActBlock& x, uint32_t k) {
  int32_t dot = 0;
  for (uint32_t end = k + kQuantBlock / 2; k < end; ++k) dot += (u[k] - format.zero_point) * x.q[k];
  return dot;
}

// Where a block of a panel is.
struct PanelBlock {
  PanelBlock(const QuantFormat& format, const uint8_t* panel, uint32_t b) {
    const uint8_t* group = panel + b / format.group_blocks() * format.group_bytes();
    const uint32_t i = b % format.group_blocks();
    values = group + i * format.value_bytes();
    halves = values + format.value_bytes();
    if (!format.super_blocks) return;
    values += format.scale_bytes();
    halves = group;
    sub_scales = group + format.half_bytes() + i * kPanelRows * 2;
  }
  const uint8_t* values;
  const uint8_t* halves;                // 16 fp16 scales, or d; then mins, or dmin
  const uint8_t* sub_scales = nullptr;  // of K types
};

// acc plus what one row of a block adds to it.
float AddBlock(const QuantFormat& format, const PanelBlock& block, uint32_t row, const ActBlock& x,
               float acc) {
  uint8_t u[kQuantBlock];
  UnpackRow(format, block.values, row, u);
  float scale = LoadHalf(block.halves + row * 2);
  float min = format.has_min ? LoadHalf(block.halves + (kPanelRows + row) * 2) : 0.0f;
  int32_t first = DotHalf(format, u, x, 0);
  int32_t second = DotHalf(format, u, x, kQuantBlock / 2);
  if (format.bits == 6) {
    first *= static_cast<int8_t>(block.sub_scales[row * 2]);
    second *= static_cast<int8_t>(block.sub_scales[row * 2 + 1]);
  } else if (format.super_blocks) {
    scale *= block.sub_scales[row];
    min *= block.sub_scales[kPanelRows + row];
  }
  acc = Fma(scale * x.scale, static_cast<float>(first + second), acc);
  if (!format.has_min) return acc;
  return Fma(min, x.scale * static_cast<float>(x.sum), acc);
}

// y of the 16 rows of a panel for one token: `x` are its blocks.
void PanelDot(const QuantFormat& format, const uint8_t* panel, const ActBlock* x, uint32_t blocks,
              float* acc) {
  for (uint32_t r = 0; r < kPanelRows; ++r) acc[r] = 0;
  for (uint32_t b = 0; b < blocks; ++b) {
    const PanelBlock block(format, panel, b);
    for (uint32_t r = 0; r < kPanelRows; ++r) acc[r] = AddBlock(format, block, r, x[b], acc[r]);
  }
}

// ---- GEMM -------------------------------------------------------------------------------------

void Gemm(const QuantGemmArgs& a) {
  const uint32_t blocks = a.in_features / kQuantBlock;
  for (uint32_t p = a.panel_begin; p < a.panel_end; ++p) {
    const uint8_t* panel = a.weight + p * a.format.panel_bytes(a.in_features);
    const uint32_t first = p * kPanelRows;
    const uint32_t rows = a.out_features - first < kPanelRows ? a.out_features - first : kPanelRows;
    for (uint32_t t = 0; t < a.tokens; ++t) {
      float acc[kPanelRows];
      PanelDot(a.format, panel, a.x + t * a.x_stride, blocks, acc);
      __builtin_memcpy(a.y + t * a.y_stride + first, acc, rows * sizeof(float));
    }
  }
}

void GateUp(const GateUpArgs& a) {
  constexpr uint32_t kPanels = kQuantBlock / kPanelRows;  // panels a block of columns
  const uint32_t blocks = a.in_features / kQuantBlock;
  const size_t panel_bytes = a.format.panel_bytes(a.in_features);
  for (uint32_t b = a.block_begin; b < a.block_end; ++b) {
    const uint8_t* gate_panel = a.weight + b * kPanels * panel_bytes;
    const uint8_t* up_panel = gate_panel + a.columns / kPanelRows * panel_bytes;
    for (uint32_t t = 0; t < a.tokens; ++t) {
      float gate[kQuantBlock];
      float up[kQuantBlock];
      for (uint32_t p = 0; p < kPanels; ++p) {
        const ActBlock* x = a.x + t * a.x_stride;
        PanelDot(a.format, gate_panel + p * panel_bytes, x, blocks, gate + p * kPanelRows);
        PanelDot(a.format, up_panel + p * panel_bytes, x, blocks, up + p * kPanelRows);
      }
      for (uint32_t i = 0; i < kQuantBlock; ++i) {
        const float act = a.act == HiddenAct::kSilu ? gate[i] / (1.0f + ReferenceExp(-gate[i]))
                                                    : ReferenceGelu(gate[i]);
        gate[i] = act * up[i];
      }
      QuantizeBlock(gate, a.out + t * a.out_stride + b);
    }
  }
}

}  // namespace

const QuantKernelTable& ReferenceQuantKernels() {
  static constexpr QuantKernelTable kTable = {"reference", Gemm, GateUp, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
