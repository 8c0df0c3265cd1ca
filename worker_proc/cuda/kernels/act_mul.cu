#include "worker_proc/cuda/kernels/act_mul.h"

#include "worker_proc/cuda/kernels/activation.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;

// Block (x, y): the columns from y * kThreads * n on of row x (there may be more rows than y
// takes).
template <typename T, uint32_t n>
__global__ void __launch_bounds__(kThreads) ActMulKernel(ActMulArgs args) {
  StartNext();
  AfterPrevious();
  const uint32_t c = (blockIdx.y * kThreads + threadIdx.x) * n;
  if (c >= args.cols) return;
  const size_t row = blockIdx.x;
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
  shape.grid_x = args.rows;
  shape.grid_y = CeilDiv(args.cols, kThreads * n);
  shape.block = kThreads;
  Launch(shape, ActMulKernel<T, n>, args, stream);
}

}  // namespace

void ActMul(const ActMulArgs& args, Stream stream) {
  if (args.cols == 0) return;  // a rank without a share
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
