#include "worker_proc/cuda/kernels/act_mul.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;

__device__ __forceinline__ float Act(HiddenAct act, float x) {
  if (act == HiddenAct::kSilu) return x / (1 + FastExp(-x));
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  return 0.5f * x * (1 + FastTanh(kSqrt2OverPi * fmaf(0.044715f * x * x, x, x)));
}

// Block (x, y): the columns from x * kThreads * n on of row y.
template <typename T, uint32_t n>
__global__ void __launch_bounds__(kThreads) ActMulKernel(ActMulArgs args) {
  const uint32_t c = (blockIdx.x * kThreads + threadIdx.x) * n;
  if (c >= args.cols) return;
  const size_t row = blockIdx.y;
  const T* const gate_up = static_cast<const T*>(args.gate_up) + row * 2 * args.cols;
  float gate[n];
  float up[n];
  LoadRun(gate_up + c, gate);
  LoadRun(gate_up + args.cols + c, up);
  for (uint32_t i = 0; i < n; ++i) gate[i] = Act(args.act, gate[i]) * up[i];
  StoreRun(static_cast<T*>(args.out) + row * args.cols + c, gate);
}

template <typename T, uint32_t n>
void Run(const ActMulArgs& args, Stream stream) {
  LaunchShape shape;
  shape.grid_x = CeilDiv(args.cols, kThreads * n);
  shape.grid_y = args.rows;
  shape.block = kThreads;
  Launch(shape, ActMulKernel<T, n>, args, stream);
}

}  // namespace

void ActMul(const ActMulArgs& args, Stream stream) {
  ForElement(args.type, [&](auto element) {
    using T = decltype(element);
    if (args.cols % kRun == 0) {
      Run<T, kRun>(args, stream);
    } else {
      Run<T, 1>(args, stream);
    }
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
