// What a gate goes through (act_mul.h, and gated products in gemv.h).
//
// Threads: each thread its own value. Errors: none.
#pragma once

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda {

__device__ __forceinline__ float Act(HiddenAct act, float x) {
  if (act == HiddenAct::kSilu) return x / (1 + FastExp(-x));
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  return 0.5f * x * (1 + FastTanh(kSqrt2OverPi * fmaf(0.044715f * x * x, x, x)));
}

// Of a gated product's two sums, as if T had been between the product and the gate.
template <typename T>
__device__ __forceinline__ float Gated(HiddenAct act, float gate, float up) {
  return Act(act, ToFloat(FromFloat<T>(gate))) * ToFloat(FromFloat<T>(up));
}

}  // namespace flotilla::cuda
