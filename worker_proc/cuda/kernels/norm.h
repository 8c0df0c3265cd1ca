// RMSNorm, and the addition to the residual stream before it, in one pass over memory:
//
//   residual += x;  out = residual / sqrt(mean(residual²) + eps) * weight
//
// Shapes: x, residual, out [rows, cols], dense; weight [cols]. x, residual and weight are float,
// out is of any type. One block a row; a row's result depends on that row only. Threads: the
// stream's. Errors: none. Source: "Root Mean Square Layer Normalization", arXiv 1910.07467.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

inline constexpr uint32_t kNormRunBytes = 32;  // of x, where whole rows are such runs

struct RmsNormArgs {
  const float* x = nullptr;
  float* residual = nullptr;  // null: out is the norm of x
  const float* weight = nullptr;
  float eps = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  void* out = nullptr;  // may be x, if it is float
  Element out_type = Element::kFloat32;
};

}  // namespace flotilla::cuda
