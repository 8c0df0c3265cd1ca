// What a tile unit multiplies, as simd_quant_tiles.inc makes and reads it: plain memory.
#pragma once

#include <cstdint>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {

inline constexpr uint32_t kTileSums = kTileTokens * kPanelRows;

// A block of K of 16 tokens. Those that there are not are zero.
struct alignas(64) TokenBlock {
  int8_t q[kTileTokens][kQuantBlock];
  float scale[kTileTokens];
  float scaled_sum[kTileTokens];  // scale * sum, what a min is multiplied by
};
static_assert(sizeof(TokenBlock) == kTileTokens * kTileBlockBytes);

// A block of K of a panel: fours of k of all rows, signed bytes less their zero point.
struct alignas(64) PanelBlock {
  uint32_t w[kQuantBlock / 4][kPanelRows];
  float scale[kPanelRows];
  float min[kPanelRows];
};

// What ldtilecfg reads, for AMX: tiles 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, kQuantBlock, kQuantBlock, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, kQuantBlock / 4, kQuantBlock / 4};
};
static_assert(sizeof(TileConfig) == 64);
inline constexpr TileConfig kTileConfig;

}  // namespace flotilla::cpu
