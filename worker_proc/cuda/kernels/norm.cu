#include "worker_proc/cuda/kernels/norm.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/norm_row.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

template <typename Out, uint32_t n>
__global__ void __launch_bounds__(kNormThreads) RmsNormKernel(RmsNormArgs args) {
  StartNext();
  FLOTILLA_SHARED(float, warps, kNormThreads / kWarp);
  const size_t row = static_cast<size_t>(blockIdx.x) * args.cols;
  const float* const x = args.x + row;
  float* const residual = args.residual == nullptr ? nullptr : args.residual + row;
  NormRow<Out, n> norm(args);
  AfterPrevious();
  // x, to which the residual stream is added; the sum is the stream then.
  const auto load = [&](uint32_t c, float(&values)[n]) {
    LoadRun(x + c, values);
    if (residual == nullptr) return;
    float before[n];
    LoadRun(residual + c, before);
    for (uint32_t i = 0; i < n; ++i) values[i] += before[i];
    StoreRun(residual + c, values);
  };
  const float* const from = residual != nullptr ? residual : x;  // this thread wrote its columns
  const auto again = [&](uint32_t c, float(&values)[n]) { LoadRun(from + c, values); };
  norm.Run(load, again, warps, static_cast<Out*>(args.out) + row);
}

template <typename Out, uint32_t n>
void Run(const RmsNormArgs& args, Stream stream) {
  LaunchShape shape;
  shape.grid_x = args.rows;
  shape.block = CeilDiv(CeilDiv(args.cols, n), kWarp) * kWarp;
  if (shape.block > kNormThreads) shape.block = kNormThreads;
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
