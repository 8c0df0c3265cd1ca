#include "worker_proc/cuda/kernels/gemv.h"

#include "worker_proc/cuda/kernels/activation.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kRowsABlock = 4;
constexpr uint32_t kThreads = kRowsABlock * kWarp;
// Bytes of a row that are asked for early. With more, a lane runs out of registers.
constexpr uint32_t kShortRow = 2048;
constexpr uint32_t kLongRow = 6144;

// n: elements that a lane takes at once. early_bytes: of a row. matrices: 2 where the product is
// gated.
template <typename T, typename Y, uint32_t n, uint32_t early_bytes, uint32_t matrices>
__global__ void __launch_bounds__(kThreads) GemvKernel(GemvArgs args) {
  constexpr uint32_t kStep = kWarp * n;
  constexpr uint32_t kEarly = early_bytes / (kStep * sizeof(T));  // runs of a lane
  constexpr uint32_t kPacks = n / Pack<T>::kSize;
  StartNext();
  const uint32_t row = blockIdx.x * kRowsABlock + threadIdx.x / kWarp;
  const bool valid = row < args.out_features;
  const size_t in = args.in_features;
  const uint32_t lane_k = threadIdx.x % kWarp * n;
  const T* const w = static_cast<const T*>(args.weight) + (valid ? row : 0) * in;
  const T* const x = static_cast<const T*>(args.x);
  const size_t next_matrix = args.out_features * in;
  float sums[matrices] = {};
  uint32_t k = lane_k;
  if constexpr (kEarly > 0) {
    Pack<T> early[matrices][kEarly][kPacks] = {};
    for (uint32_t i = 0; i < kEarly; ++i) {
      const uint32_t at = lane_k + i * kStep;
      for (uint32_t m = 0; m < matrices; ++m) {
        for (uint32_t p = 0; p < kPacks; ++p) {
          if (at < in) early[m][i][p] = Load16(w + m * next_matrix + at + p * Pack<T>::kSize);
        }
      }
    }
    AfterPrevious();
    for (uint32_t i = 0; i < kEarly; ++i, k += kStep) {
      if (k >= in) continue;
      float values[n];
      LoadRun(x + k, values);
      for (uint32_t m = 0; m < matrices; ++m) {
        for (uint32_t e = 0; e < n; ++e) {
          const float weight = ToFloat(early[m][i][e / Pack<T>::kSize].v[e % Pack<T>::kSize]);
          sums[m] = fmaf(weight, values[e], sums[m]);
        }
      }
    }
  } else {
    AfterPrevious();
  }
  for (; k < in; k += kStep) {
    float values[n];
    LoadRun(x + k, values);
    for (uint32_t m = 0; m < matrices; ++m) {
      float weights[n];
      LoadRun(w + m * next_matrix + k, weights);
      for (uint32_t e = 0; e < n; ++e) sums[m] = fmaf(weights[e], values[e], sums[m]);
    }
  }
  for (float& sum : sums) sum = WarpSum(sum);
  if (!valid || threadIdx.x % kWarp != 0) return;
  float y = sums[0];
  if constexpr (matrices == 2) {
    y = Gated<T>(args.act, sums[0], sums[1]);
  } else if (args.bias != nullptr) {
    y += args.bias[row];
  }
  static_cast<Y*>(args.y)[row] = FromFloat<Y>(y);
}

template <typename T, typename Y, uint32_t matrices>
void Run(const GemvArgs& args, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(args.out_features, kRowsABlock), .block = kThreads};
  if (args.in_features % kRun != 0) {
    Launch(shape, GemvKernel<T, Y, 1, 0, matrices>, args, stream);
  } else if (args.in_features * sizeof(T) <= kShortRow) {
    Launch(shape, GemvKernel<T, Y, kRun, kShortRow, matrices>, args, stream);
  } else {
    Launch(shape, GemvKernel<T, Y, kRun, kLongRow, matrices>, args, stream);
  }
}

}  // namespace

void Gemv(const GemvArgs& args, Stream stream) {
  ForElement(args.type, [&](auto element) {
    using T = decltype(element);
    if (args.gated) return Run<T, T, 2>(args, stream);
    ForElement(args.y_type, [&](auto result) { Run<T, decltype(result), 1>(args, stream); });
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
