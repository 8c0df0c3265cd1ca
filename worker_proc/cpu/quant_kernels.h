// The CPU's integer kernels: quantised weights times int8 activations, and what produces such
// activations. One table of functions an instruction set, as in kernels.h.
//
// Weights stay at their own width in memory. Panels of 16 output rows × blocks of 32 of K; a block
// of a panel is contiguous: the 16 rows' values, then 16 fp16 scales, then (has_min) 16 fp16 mins.
//   4 bits: 4 groups j of 64 bytes; in group j row r has 4 bytes at 4 r; byte i holds k = 4 j + i
//   in
//           its low and k = 16 + 4 j + i in its high nibble (a GGUF block's 16 bytes, transposed by
//           fours).
//   8 bits: 8 groups j of 64 bytes; byte i of row r in group j is k = 4 j + i, stored as u8.
// The value of a weight is scale * (u - zero_point) + min. Rows past out_features are zero.
//
// Activations: int8 in blocks of 32 (ActBlock), scale = max|x| / 127 in fp32, q = x * (127 /
// max|x|) rounded to nearest even, so -127 … 127, with the exact sum of the 32 integers. A block
// whose max|x| is below kMinActMax is all zero. A block with an infinity or a NaN has scale NaN and
// zeros: every output that reads it is NaN, and no other.
//
// Bits: for each output element, over the blocks of K in order and starting at 0:
//   acc = fma(w_scale * x_scale, float(sum(u * q) - zero_point * sum(q)), acc)
//   acc = fma(w_min, x_scale * float(sum(q)), acc)                          (has_min)
// with one rounding for each product and fma. Lanes are output rows, so neither the number of
// tokens nor the tiling, the thread or the rank changes a bit. All tables give the same bits.
//
// Units: elements, tokens, blocks. Threads: stateless; disjoint panels may be computed by different
// threads at once. The caller owns all memory. Errors: none; shapes are checked at load. Source:
// ours; the number formats are GGUF's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {

inline constexpr uint32_t kQuantBlock = 32;
inline constexpr float kMinActMax = 1e-30f;  // keeps 127 / max|x| finite and the scale normal

struct ActBlock {
  int8_t q[kQuantBlock];
  float scale;
  int32_t sum;
};
static_assert(sizeof(ActBlock) == 40);

// How a quantised matrix is stored: one of Q4_0, Q4_1 and Q8_0 (QuantFormatOf in quant_pack.h).
struct QuantFormat {
  uint32_t bits = 4;       // 4 or 8
  bool has_min = false;    // Q4_1
  int32_t zero_point = 0;  // Q4_0: 8, Q8_0: 128, Q4_1: 0
  // Bytes of one block of a panel.
  size_t block_bytes() const { return kPanelRows * (kQuantBlock * bits / 8 + (has_min ? 4u : 2u)); }
};

struct QuantGemmArgs {
  QuantFormat format;
  const uint8_t* weight = nullptr;  // packed, all panels
  uint32_t in_features = 0;         // a multiple of kQuantBlock
  uint32_t out_features = 0;
  const ActBlock* x = nullptr;  // [tokens, in_features / 32], rows x_stride blocks apart
  size_t x_stride = 0;
  uint32_t tokens = 0;
  float* y = nullptr;  // [tokens, out_features], rows y_stride floats apart
  size_t y_stride = 0;
  uint32_t panel_begin = 0;  // this call's share: panels [panel_begin, panel_end)
  uint32_t panel_end = 0;
};

// The weight's rows are [gate | up], each of `columns` rows (a multiple of 32):
// out = quantised act(gate) * up, for the blocks of 32 columns [block_begin, block_end).
struct GateUpArgs {
  QuantFormat format;
  const uint8_t* weight = nullptr;
  uint32_t in_features = 0;
  uint32_t columns = 0;
  const ActBlock* x = nullptr;
  size_t x_stride = 0;
  uint32_t tokens = 0;
  ActBlock* out = nullptr;  // [tokens, columns / 32], rows out_stride blocks apart
  size_t out_stride = 0;
  uint32_t block_begin = 0;
  uint32_t block_end = 0;
  HiddenAct act = HiddenAct::kSilu;
};

// As RmsNormArgs; `out` is [rows, cols / 32]. The normed value is rounded to fp32, then quantised.
struct RmsNormQuantArgs {
  const float* x = nullptr;
  float* residual = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  ActBlock* out = nullptr;
};

struct QuantKernelTable {
  const char* name;
  void (*gemm)(const QuantGemmArgs&);
  void (*gate_up)(const GateUpArgs&);
  void (*rms_norm)(const RmsNormQuantArgs&);
  // rows × cols floats, dense → [rows, cols / 32] blocks.
  void (*quantize)(const float* x, uint32_t rows, uint32_t cols, ActBlock* out);
};

const QuantKernelTable& ReferenceQuantKernels();  // plain loops: the oracle
const QuantKernelTable& Avx2QuantKernels();
const QuantKernelTable& Avx512QuantKernels();  // needs VNNI

}  // namespace flotilla::cpu
