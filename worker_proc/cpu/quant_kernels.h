// The CPU's integer kernels: quantised weights times int8 activations, and what produces such
// activations. One table of functions an instruction set, as in kernels.h.
//
// Weights stay at their own width in memory. Panels of 16 output rows × blocks of 32 of K, in the
// order of K. The values of a block, as unsigned integers u:
//   4 bits: 4 groups j of 64 bytes; in group j row r has 4 bytes at 4 r; byte i holds k = 4 j + i
//   in
//           its low and k = 16 + 4 j + i in its high nibble (a GGUF block's 16 bytes, transposed by
//           fours).
//   5 bits: of k < 16 the lower 4 bits and of k >= 16 the upper 4 as above; then 64 bytes: byte i
//   of
//           row r has the lowest bit of k = 16 + 4 j + i in bit 2 j and the uppermost bit of
//           k = 4 j + i in bit 2 j + 1. So one shift serves both.
//   6 bits: the same with 2 bits and 2 groups of 64 bytes: group j / 2, from bit 4 (j % 2) on the
//           lowest two of k = 16 + 4 j + i, then the upper two of k = 4 j + i.
//   8 bits: 8 groups j of 64 bytes; byte i of row r in group j is k = 4 j + i.
// Rows past out_features are zero. Then follow the scales of these 32 k, and the value of a weight
// is
//   Q4_0, Q5_0, Q8_0: 16 fp16 scales. scale * (u - zero_point).
//   Q4_1, Q5_1: 16 fp16 scales, 16 fp16 mins. scale * u + min.
// In the K types they precede the values of a super-block, 8 blocks:
//   Q4_K, Q5_K: 16 fp16 d, 16 fp16 dmin (the negative of GGUF's), then for each block 16 bytes sc
//           and 16 bytes m. (d * sc) * u + (dmin * m).
//   Q6_K: 16 fp16 d, then for each block and row 2 signed bytes: sc0 for the first 16 k, sc1 for
//   the
//           others. d * sc * (u - zero_point).
//
// Activations: int8 in blocks of 32 (ActBlock), scale = max|x| / 127 in fp32, q = x * (127 /
// max|x|) rounded to nearest even, so -127 … 127, with the exact sum of the 32 integers. A block
// whose max|x| is below kMinActMax is all zero. A block with an infinity or a NaN has scale NaN and
// zeros: every output that reads it is NaN, and no other.
//
// Bits: for each output element, over the blocks of K in order and starting at 0:
//   acc = fma(w_scale * x_scale, float(sum(u * q) - zero_point * sum(q)), acc)
//   acc = fma(w_min, x_scale * float(sum(q)), acc)                          (has_min)
// with one rounding for each product and fma. In Q4_K and Q5_K w_scale = d * sc and w_min = dmin *
// m, which fp32 holds exactly. In Q6_K
//   acc = fma(d * x_scale, float(sc0 * sum0 + sc1 * sum1), acc)
// with sum0 and sum1 the sums of (u - zero_point) * q of each 16 k: the integer is below 2^24.
// Lanes are output rows, so neither the number of tokens nor the tiling, the thread or the rank
// changes a bit. All tables give the same bits.
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

inline constexpr uint32_t kSuperBlocks = 8;  // blocks of a K type's super-block

// How a quantised matrix is stored: QuantFormatOf in quant_pack.h knows that of each type.
struct QuantFormat {
  uint32_t bits = 4;          // 4, 5, 6 or 8; 6: Q6_K
  bool has_min = false;       // Q4_1, Q5_1, Q4_K, Q5_K
  int32_t zero_point = 0;     // Q4_0: 8, Q5_0: 16, Q6_K: 32, Q8_0: 128
  bool super_blocks = false;  // the K types

  // Blocks that have their scales in one place.
  constexpr uint32_t group_blocks() const { return super_blocks ? kSuperBlocks : 1; }
  // Bytes: the values of a block, the scales of a group, a group with both.
  constexpr size_t value_bytes() const { return kPanelRows * kQuantBlock * size_t{bits} / 8; }
  constexpr size_t half_bytes() const { return kPanelRows * (has_min ? 4u : 2u); }
  constexpr size_t scale_bytes() const {
    return half_bytes() + (super_blocks ? size_t{kSuperBlocks} * kPanelRows * 2 : 0);
  }
  constexpr size_t group_bytes() const { return group_blocks() * value_bytes() + scale_bytes(); }
  // in_features is a multiple of kQuantBlock * group_blocks().
  constexpr size_t panel_bytes(uint64_t in_features) const {
    return in_features / (kQuantBlock * group_blocks()) * group_bytes();
  }
};

struct QuantGemmArgs {
  QuantFormat format;
  const uint8_t* weight = nullptr;  // packed, all panels
  uint32_t in_features = 0;         // a multiple of kQuantBlock, of 8 for the K types
  uint32_t out_features = 0;
  const ActBlock* x = nullptr;  // [tokens, in_features / 32], rows x_stride blocks apart
  size_t x_stride = 0;
  uint32_t tokens = 0;
  float* y = nullptr;  // [tokens, out_features], rows y_stride floats apart
  size_t y_stride = 0;
  uint32_t panel_begin = 0;  // this call's share: panels [panel_begin, panel_end)
  uint32_t panel_end = 0;
  const void* token_tiles = nullptr;  // by pack_tokens, of the first TiledTokens; or null
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
  const void* token_tiles = nullptr;  // as QuantGemmArgs has them
};

// Activations as tiles of 16 tokens, which some instruction sets multiply faster. They hold the
// same values, so the products have the same bits.
inline constexpr uint32_t kTileTokens = 16;
inline constexpr uint32_t kTileBlockBytes = kQuantBlock + 8;  // of a token and block of K
inline constexpr size_t PackedTokensBytes(uint64_t tokens, uint64_t in_features) {
  return (tokens + kTileTokens - 1) / kTileTokens * kTileTokens * (in_features / kQuantBlock) *
         kTileBlockBytes;
}

// How many of `tokens` tokens go through tiles, the first ones: vectors take their time by the
// token, a tile does not. Q6_K's two sub-scales a block would need two products: vectors are as
// fast.
inline constexpr uint32_t kMinTileTokens = 13;
inline constexpr uint32_t TiledTokens(const QuantFormat& format, uint32_t tokens) {
  if (format.bits == 6) return 0;
  const uint32_t rest = tokens % kTileTokens;
  return rest < kMinTileTokens ? tokens - rest : tokens;
}

struct PackTokensArgs {
  const ActBlock* x = nullptr;
  size_t x_stride = 0;
  uint32_t tokens = 0;  // TiledTokens of all
  uint32_t in_features = 0;
  void* token_tiles = nullptr;  // PackedTokensBytes, aligned to 64
  uint32_t tile_begin = 0;      // this call's share
  uint32_t tile_end = 0;
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
  // Null where no kernel reads packed tokens.
  void (*pack_tokens)(const PackTokensArgs&) = nullptr;
};

const QuantKernelTable& ReferenceQuantKernels();  // plain loops: the oracle
const QuantKernelTable& Avx2QuantKernels();
const QuantKernelTable& Avx512QuantKernels();  // needs VNNI
const QuantKernelTable& AmxQuantKernels();     // VNNI's, and tiles: needs CpuHasAmxInt8

}  // namespace flotilla::cpu
