// The gate of a feed-forward layer: out = act(gate) * up, with SiLU or GELU's approximation by
// tanh.
//
// Shapes: gate_up [rows, 2 * cols], each row [gate | up]; out [rows, cols]; both of one type.
// Threads: the stream's. Errors: none. Source: "GLU Variants Improve Transformer", arXiv
// 2002.05202.
#pragma once

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

struct ActMulArgs {
  const void* gate_up = nullptr;
  Element type = Element::kFloat32;
  HiddenAct act = HiddenAct::kSilu;
  uint32_t rows = 0;
  uint32_t cols = 0;
  void* out = nullptr;
};

}  // namespace flotilla::cuda
