// A row's RMSNorm by a block, whatever its values come from: for norm.cu, for gather.cu, which
// norms what it has gathered, and for resident_gemm.cu, which norms what it multiplies. The same
// bits for any number of threads that is not less than the row's runs, or kNormThreads.
//
// Threads: all of the block. Errors: none.
#pragma once

#include "worker_proc/cuda/kernels/norm.h"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda {

inline constexpr uint32_t kNormThreads = 256;

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
struct NormRow {
  uint32_t cols;
  const float* weight;
  float eps;
  float first_weight[n] = {};

  __device__ __forceinline__ NormRow(const RmsNormArgs& args)
      : cols(args.cols), weight(args.weight), eps(args.eps) {
    const uint32_t first = threadIdx.x * n;
    if (first < cols) LoadRun(weight + first, first_weight);
  }

  // load(c, values): the columns from c on, once; again(c, values): the same for columns that this
  // thread has loaded.
  template <typename Load, typename Again>
  __device__ __forceinline__ void Run(const Load& load, const Again& again, SharedSpan<float> warps,
                                      Out* out) {
    const uint32_t first = threadIdx.x * n;
    const uint32_t step = blockDim.x * n;
    float first_values[n] = {};
    if (first < cols) load(first, first_values);
    float squares = AddSquares(first_values, 0);
    for (uint32_t c = first + step; c < cols; c += step) {
      float values[n];
      load(c, values);
      squares = AddSquares(values, squares);
    }
    const float mean = BlockSum(squares, warps) / static_cast<float>(cols);
    const float scale = ReciprocalSqrt(mean + eps);
    if (first < cols) StoreScaled(scale, first_weight, first_values, out + first);
    for (uint32_t c = first + step; c < cols; c += step) {
      float values[n];
      float of_columns[n];
      again(c, values);
      LoadRun(weight + c, of_columns);
      StoreScaled(scale, of_columns, values, out + c);
    }
  }
};

}  // namespace flotilla::cuda
