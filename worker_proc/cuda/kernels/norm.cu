#include "worker_proc/cuda/kernels/norm.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kMaxThreads = 256;

// x, to which the residual stream is added, of the columns from c on; the sum is the stream then.
template <uint32_t n>
__device__ __forceinline__ void LoadSum(const float* x, float* residual, uint32_t c,
                                        float (&values)[n]) {
  LoadRun(x + c, values);
  if (residual == nullptr) return;
  float before[n];
  LoadRun(residual + c, before);
  for (uint32_t i = 0; i < n; ++i) values[i] += before[i];
  StoreRun(residual + c, values);
}

template <uint32_t n>
__device__ __forceinline__ float AddSquares(const float (&values)[n], float sum) {
  for (uint32_t i = 0; i < n; ++i) sum = fmaf(values[i], values[i], sum);
  return sum;
}

template <typename Out, uint32_t n>
__device__ __forceinline__ void StoreScaled(float scale, const float (&weight)[n],
                                            float (&values)[n], Out* out) {
  for (uint32_t i = 0; i < n; ++i) values[i] *= scale * weight[i];
  StoreRun(out, values);
}

// n: columns that a thread takes at once. The first of them, which are all of a narrow row's, stay
// where they are between the sum and the scaling.
template <typename Out, uint32_t n>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(RmsNormArgs args) {
  StartNext();
  FLOTILLA_SHARED(float, warps, kMaxThreads / kWarp);
  const size_t row = static_cast<size_t>(blockIdx.x) * args.cols;
  const float* const x = args.x + row;
  float* const residual = args.residual == nullptr ? nullptr : args.residual + row;
  const uint32_t first = threadIdx.x * n;
  const uint32_t step = blockDim.x * n;
  float first_weight[n] = {};
  if (first < args.cols) LoadRun(args.weight + first, first_weight);
  AfterPrevious();
  float first_values[n] = {};
  if (first < args.cols) LoadSum(x, residual, first, first_values);
  float squares = AddSquares(first_values, 0);
  for (uint32_t c = first + step; c < args.cols; c += step) {
    float values[n];
    LoadSum(x, residual, c, values);
    squares = AddSquares(values, squares);
  }
  const float mean = BlockSum(squares, warps) / static_cast<float>(args.cols);
  const float scale = ReciprocalSqrt(mean + args.eps);
  Out* const out = static_cast<Out*>(args.out) + row;
  if (first < args.cols) StoreScaled(scale, first_weight, first_values, out + first);
  const float* const from = residual != nullptr ? residual : x;  // this thread wrote its columns
  for (uint32_t c = first + step; c < args.cols; c += step) {
    float values[n];
    float weight[n];
    LoadRun(from + c, values);
    LoadRun(args.weight + c, weight);
    StoreScaled(scale, weight, values, out + c);
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
