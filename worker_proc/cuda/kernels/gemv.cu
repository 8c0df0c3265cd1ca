#include "worker_proc/cuda/kernels/gemv.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kRowsABlock = 4;
constexpr uint32_t kThreads = kRowsABlock * kWarp;

// n: elements that a lane takes at once.
template <typename T, typename Y, uint32_t n>
__global__ void __launch_bounds__(kThreads) GemvKernel(GemvArgs args) {
  StartNext();
  AfterPrevious();
  const uint32_t row = blockIdx.x * kRowsABlock + threadIdx.x / kWarp;
  if (row >= args.out_features) return;
  const T* const w =
      static_cast<const T*>(args.weight) + static_cast<size_t>(row) * args.in_features;
  const T* const x = static_cast<const T*>(args.x);
  const uint32_t lane = threadIdx.x % kWarp;
  float sum = 0;
  for (uint32_t k = lane * n; k < args.in_features; k += kWarp * n) {
    float weights[n];
    float values[n];
    LoadRun(w + k, weights);
    LoadRun(x + k, values);
    for (uint32_t i = 0; i < n; ++i) sum = fmaf(weights[i], values[i], sum);
  }
  sum = WarpSum(sum);
  if (lane != 0) return;
  if (args.bias != nullptr) sum += args.bias[row];
  static_cast<Y*>(args.y)[row] = FromFloat<Y>(sum);
}

}  // namespace

void Gemv(const GemvArgs& args, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(args.out_features, kRowsABlock), .block = kThreads};
  ForElement(args.type, [&](auto element) {
    ForElement(args.y_type, [&](auto result) {
      using T = decltype(element);
      using Y = decltype(result);
      Launch(shape, args.in_features % kRun == 0 ? GemvKernel<T, Y, kRun> : GemvKernel<T, Y, 1>,
             args, stream);
    });
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
