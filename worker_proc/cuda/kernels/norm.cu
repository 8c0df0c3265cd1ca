#include "worker_proc/cuda/kernels/norm.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kMaxThreads = 256;

// n: columns that a thread takes at once.
template <typename Out, uint32_t n>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(RmsNormArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(float, warps, kMaxThreads / kWarp);
  const size_t row = static_cast<size_t>(blockIdx.x) * args.cols;
  const float* const x = args.x + row;
  float* const residual = args.residual == nullptr ? nullptr : args.residual + row;
  float squares = 0;
  for (uint32_t c = threadIdx.x * n; c < args.cols; c += blockDim.x * n) {
    float values[n];
    LoadRun(x + c, values);
    if (residual != nullptr) {
      float before[n];
      LoadRun(residual + c, before);
      for (uint32_t i = 0; i < n; ++i) values[i] += before[i];
      StoreRun(residual + c, values);
    }
    for (uint32_t i = 0; i < n; ++i) squares = fmaf(values[i], values[i], squares);
  }
  const float mean = BlockSum(squares, warps) / static_cast<float>(args.cols);
  const float scale = ReciprocalSqrt(mean + args.eps);
  Out* const out = static_cast<Out*>(args.out) + row;
  const float* const from = residual != nullptr ? residual : x;  // this thread wrote its columns
  for (uint32_t c = threadIdx.x * n; c < args.cols; c += blockDim.x * n) {
    float values[n];
    float weight[n];
    LoadRun(from + c, values);
    LoadRun(args.weight + c, weight);
    for (uint32_t i = 0; i < n; ++i) values[i] *= scale * weight[i];
    StoreRun(out + c, values);
  }
}

template <typename Out, uint32_t n>
void Run(const RmsNormArgs& args, Stream stream) {
  LaunchShape shape;
  shape.grid_x = args.rows;
  shape.block = CeilDiv(CeilDiv(args.cols, n), kWarp) * kWarp;
  if (shape.block > kMaxThreads) shape.block = kMaxThreads;
  Launch(shape, RmsNormKernel<Out, n>, args, stream);
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, Stream stream) {
  ForElement(args.out_type, [&](auto out) {
    using Out = decltype(out);
    if (args.cols % kRun == 0) {
      Run<Out, kRun>(args, stream);
    } else {
      Run<Out, 1>(args, stream);
    }
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
