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
  for (uint32_t k = 0; k < kQuantBlock; ++k) {
    if (format.bits == 8) {
      u[k] = block[k / 4 * 64 + row * 4 + k % 4];
    } else {
      const uint8_t byte = block[k % 16 / 4 * 64 + row * 4 + k % 4];
      u[k] = k < 16 ? byte & 0x0f : byte >> 4;
    }
  }
}

float LoadHalf(const uint8_t* from) {
  uint16_t half;
  __builtin_memcpy(&half, from, sizeof(half));
  return _cvtsh_ss(half);
}

// y of the 16 rows of a panel for one token: `x` are its blocks.
void PanelDot(const QuantFormat& format, const uint8_t* panel, const ActBlock* x, uint32_t blocks,
              float* acc) {
  for (uint32_t r = 0; r < kPanelRows; ++r) acc[r] = 0;
  for (uint32_t b = 0; b < blocks; ++b, panel += format.block_bytes()) {
    const uint8_t* scales = panel + kPanelRows * kQuantBlock * format.bits / 8;
    const uint8_t* mins = scales + kPanelRows * 2;
    for (uint32_t r = 0; r < kPanelRows; ++r) {
      uint8_t u[kQuantBlock];
      UnpackRow(format, panel, r, u);
      int32_t dot = 0;
      for (uint32_t k = 0; k < kQuantBlock; ++k) dot += u[k] * x[b].q[k];
      dot -= format.zero_point * x[b].sum;
      acc[r] = Fma(LoadHalf(scales + r * 2) * x[b].scale, static_cast<float>(dot), acc[r]);
      if (!format.has_min) continue;
      acc[r] = Fma(LoadHalf(mins + r * 2), x[b].scale * static_cast<float>(x[b].sum), acc[r]);
    }
  }
}

// ---- GEMM -------------------------------------------------------------------------------------

void Gemm(const QuantGemmArgs& a) {
  const uint32_t blocks = a.in_features / kQuantBlock;
  for (uint32_t p = a.panel_begin; p < a.panel_end; ++p) {
    const uint8_t* panel = a.weight + p * blocks * a.format.block_bytes();
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
  const size_t panel_bytes = blocks * a.format.block_bytes();
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
