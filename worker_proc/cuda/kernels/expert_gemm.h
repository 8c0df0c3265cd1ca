// Matrix products of rows with the matrices of their experts (route.h), and what becomes of a
// token's rows.
//
//   expert_gemm      y[row] = W[expert of row] x[row], or, gated, act(gate x) * (up x)
//   combine_experts  out[token] = the sum of weight * y[row] over the token's rows, in the order of
//                    experts
//
// A block has a tile of rows and kExpertColumns columns. Elements of 16 bits are multiplied by the
// tensor cores with the chain of sums of skinny_gemm.h where in_features allows, others by a plain
// chain: a row's bits depend on that row only, whatever its tile.
//
// Shapes: weights [num_experts, out_features, in_features], gated: [num_experts, 2 * out_features,
// in_features], gates before what they multiply; x [tokens or rows, in_features] of the same type;
// y [rows, out_features], float, or gated: of `type`; combine: y [rows, cols], out [tokens, cols],
// float. Threads: the stream's. Errors: none. Source: ours.
#pragma once

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/kernels/launch.h"
#include "worker_proc/cuda/kernels/route.h"

namespace flotilla::cuda {

inline constexpr uint32_t kExpertColumns = 32;

struct ExpertGemmArgs {
  const void* weights = nullptr;
  Element type = Element::kBFloat16;
  uint32_t out_features = 0;
  uint32_t in_features = 0;
  const void* x = nullptr;
  const uint32_t* row_tokens = nullptr;  // whose row of x it is; null: x has the rows themselves
  const ExpertTile* tiles = nullptr;
  uint32_t tile_rows = 0;
  uint32_t num_tiles = 0;
  bool gated = false;
  HiddenAct act = HiddenAct::kSilu;
  void* y = nullptr;
};

struct CombineArgs {
  const float* y = nullptr;
  const uint32_t* token_rows = nullptr;  // [tokens, top_k]
  const float* weights = nullptr;        // [tokens, top_k]
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t cols = 0;
  float* out = nullptr;
};

}  // namespace flotilla::cuda
