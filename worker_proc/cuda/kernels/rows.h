// Small ops over rows: choosing some, capping logits.
//
//   SelectRows  out[i] = x[rows[i]], bytes as they are.
//   SoftCap     x = cap * tanh(x / cap), in place, float.
//
// Shapes: x [.., row_bytes], out [num_rows, row_bytes], an even number; rows [num_rows].
// Threads: the stream's. Errors: none. Source: ours.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

struct SelectRowsArgs {
  const void* x = nullptr;
  const uint32_t* rows = nullptr;
  uint32_t num_rows = 0;
  uint32_t row_bytes = 0;
  void* out = nullptr;
};

struct SoftCapArgs {
  float* x = nullptr;
  uint32_t rows = 0;
  uint32_t cols = 0;
  float cap = 0;
};

}  // namespace flotilla::cuda
