// How the tokens of a step find their experts, and in which order their rows are computed then:
// which experts (ExpertRouting in backend.h), with what weights, and a row for each of them, so
// that an expert's rows lie together. Nothing of it is known to the host: the list of tiles is as
// long as it can get.
//
//   logits = x router^T; a token's experts are those with the top_k highest, of equal ones the
//   first; weight = exp(logit - max) / (their sum, over all experts or the token's own)
//
// Rows go by expert, tokens in their order within one. A token's logits and weights depend on that
// token only, bit for bit: sums are by lane, and folded in a fixed order. A logit that is no number
// is the lowest.
//
// Shapes: x [tokens, in_features] of any type; router [num_experts, in_features] and logits
// [tokens, num_experts] float; experts, weights and token_rows [tokens, top_k], a token's in the
// order of experts; row_tokens [tokens * top_k]; tiles [num_tiles], those behind the last without
// rows. num_experts at most kMostExperts. Threads: the stream's. Errors: none. Source: Shazeer et
// al., arXiv 1701.06538; a counting sort; ours.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

inline constexpr uint32_t kMostExperts = 1024;

// Rows [first_row, first_row + rows) of one expert.
struct ExpertTile {
  uint32_t expert = 0;
  uint32_t first_row = 0;
  uint32_t rows = 0;
};

// Of a tile, where experts have few rows and where they have more: a tile reads its expert's
// weights once, and multiplies empty rows, too.
inline constexpr uint32_t kNarrowTileRows = 16;
inline constexpr uint32_t kWideTileRows = 64;
inline constexpr uint32_t TileRowsOf(uint32_t rows, uint32_t num_experts) {
  return rows > kNarrowTileRows * num_experts ? kWideTileRows : kNarrowTileRows;
}
// That there may be: the last of each expert may have a single row.
inline constexpr uint32_t MostTiles(uint32_t rows, uint32_t num_experts, uint32_t tile_rows) {
  const uint32_t most = (rows + num_experts * (tile_rows - 1)) / tile_rows;
  return rows < most ? rows : most;
}

struct RouteArgs {
  const void* x = nullptr;
  Element type = Element::kBFloat16;
  const float* router = nullptr;
  uint32_t tokens = 0;
  uint32_t in_features = 0;
  uint32_t num_experts = 0;
  uint32_t top_k = 0;
  bool renormalize = false;
  float* logits = nullptr;
  uint32_t* experts = nullptr;
  float* weights = nullptr;
  uint32_t* row_tokens = nullptr;
  uint32_t* token_rows = nullptr;
  ExpertTile* tiles = nullptr;
  uint32_t tile_rows = 0;
  uint32_t num_tiles = 0;  // MostTiles
};

}  // namespace flotilla::cuda
