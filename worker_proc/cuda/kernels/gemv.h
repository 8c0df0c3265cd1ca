// A matrix times one vector, for batches of one token: y = W x (+ bias). Streams W once.
//
// Shapes: weight [out_features, in_features] of any type, row-major; x [in_features] of the same
// type; y [out_features] of y_type; bias float. A warp a row: lanes take packs of 16 bytes in turn,
// sum in float and fold in a fixed order, so that a row's bits depend on nothing else. Threads: the
// stream's. Errors: none. Source: ours.
#pragma once

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
};

}  // namespace flotilla::cuda
