// A matrix times one vector, for batches of one token: y = W x (+ bias). Streams W once, and asks
// for the beginning of each row, mostly all of it, before the kernel before is done: weights are
// there already.
//
// Shapes: weight [out_features, in_features] of any type, row-major; x [in_features] of the same
// type; y [out_features] of y_type; bias float. A warp a row: lanes take packs of 16 bytes in turn,
// sum in float and fold in a fixed order, so that a row's bits depend on nothing else. Threads: the
// stream's. Errors: none. Source: ours.
#pragma once

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

struct GemvArgs {
  const void* weight = nullptr;
  Element type = Element::kBFloat16;
  uint32_t out_features = 0;
  uint32_t in_features = 0;
  const void* x = nullptr;
  const float* bias = nullptr;  // null: none
  void* y = nullptr;
  Element y_type = Element::kFloat32;
  // A gated product, for gemv and skinny_gemm: the weight has out_features rows of gates and then
  // as many of what they multiply, y = act(gate) * up, with the bits of a product into `type`,
  // which y has too, and act_mul.h's kernel behind it. No bias.
  bool gated = false;
  HiddenAct act = HiddenAct::kSilu;
  // For products of more rows: the weight is what the kernel before writes, so it can't be asked
  // for early.
  bool weight_is_new = false;
  // For skinny_gemm, where HasAddingGemm says so: y, of floats, is added to.
  bool adds = false;
  // For skinny_gemm, where HasNormedGemm says so: x is float, and its RMSNorm is multiplied, with
  // the bits of norm.h's kernel. Null: x is what is multiplied.
  const float* norm_weight = nullptr;  // [in_features]
  float norm_eps = 0;
};

}  // namespace flotilla::cuda
