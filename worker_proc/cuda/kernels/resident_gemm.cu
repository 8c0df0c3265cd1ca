// skinny_gemm.h's products whose rows of weights and of x find room in a block's shared memory. All
// threads copy, one warp computes: what it multiplies next is on its way from shared memory while
// the tensor cores work at one chunk of the chain, whose links can't but wait for each other.
#include <type_traits>

#include "worker_proc/cuda/kernels/activation.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/norm_row.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/cuda/kernels/skinny_gemm.h"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kTileRows = 8;
constexpr uint32_t kSteps = kSkinnyChunk / 32;

struct ResidentArgs {
  SkinnyGemmArgs product;
  uint32_t stride;  // of rows in shared memory
};

// Begins to copy `rows` rows; zeros behind in_features, to the chunk's end.
template <typename T>
__device__ __forceinline__ void CopyRows(const T* from, uint32_t rows, uint32_t in_features,
                                         uint32_t stride, SharedSpan<T> to) {
  const uint32_t end = stride - kSkinnyPad;
  for (uint32_t row = 0; row < rows; ++row) {
    const T* const begin = from + static_cast<size_t>(row) * in_features;
    for (uint32_t k = threadIdx.x * Pack<T>::kSize; k < end; k += kThreads * Pack<T>::kSize) {
      const bool valid = k < in_features;
      CopyAsync16(&to[row * stride + k], valid ? begin + k : begin, valid);
    }
  }
}

// A row's norm instead of the row. Its weights are asked for before the kernel before is done.
template <typename T>
struct NormedRow {
  static_assert(kMostNormed <= kThreads * kRun);  // else norm.cu's order of the sum is another one
  const GemvArgs& matrix;
  NormRow<T, kRun> norm;

  __device__ __forceinline__ explicit NormedRow(const GemvArgs& product)
      : matrix(product),
        norm(
            {.weight = product.norm_weight, .eps = product.norm_eps, .cols = product.in_features}) {
  }
  __device__ __forceinline__ void Put(uint32_t stride, SharedSpan<T> to) {
    FLOTILLA_SHARED(float, warps, kThreads / kWarp);
    const auto load = [&](uint32_t c, float(&values)[kRun]) {
      LoadRun(static_cast<const float*>(matrix.x) + c, values);
    };
    norm.Run(load, load, warps, &to[0]);
    const uint32_t behind = matrix.in_features + threadIdx.x * kRun;
    if (behind < stride - kSkinnyPad) Store16(&to[behind], Pack<T>{});
  }
};

// A chunk of the weights' rows, of `matrices` matrices, and of x's, of two tiles at most.
template <uint32_t matrices>
struct Fragments {
  uint32_t b[matrices][kSteps][4] = {};
  uint32_t low[kSteps][4] = {};
  uint32_t high[kSteps][4] = {};
};

template <typename T, typename Y, uint32_t row_tiles, uint32_t matrices, bool normed>
__global__ void __launch_bounds__(kThreads) ResidentGemmKernel(ResidentArgs args) {
  constexpr bool kMayAdd = matrices == 1 && std::is_same_v<Y, float>;
  const GemvArgs& matrix = args.product.matrix;
  const uint32_t num_rows = args.product.rows;
  const uint32_t in = matrix.in_features;
  const uint32_t stride = args.stride;
  const uint32_t first_column = blockIdx.x * kSkinnyColumns;
  const uint32_t left = matrix.out_features - first_column;
  const uint32_t columns = left < kSkinnyColumns ? left : kSkinnyColumns;
  DynamicShared shared;
  const SharedSpan<T> weights = shared.Take<T>(matrices * kSkinnyColumns * stride);
  const SharedSpan<T> x = shared.Take<T>(num_rows * stride);
  StartNext();
  if (matrix.weight_is_new) AfterPrevious();
  for (uint32_t m = 0; m < matrices; ++m) {
    const size_t row = first_column + static_cast<size_t>(m) * matrix.out_features;
    CopyRows(static_cast<const T*>(matrix.weight) + row * in, columns, in, stride,
             weights + m * kSkinnyColumns * stride);
  }
  if constexpr (normed) {
    NormedRow<T> row(matrix);
    AfterPrevious();
    row.Put(stride, x);
  } else {
    AfterPrevious();
    CopyRows(static_cast<const T*>(matrix.x), num_rows, in, stride, x);
  }
  CopyCommit();
  CopyWait<0>();
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  // Calls f with the element of d and where it stands in y.
  const auto for_each = [&](const auto& f) {
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t row = threadIdx.x / 4 + e / 2 * kTileRows;
      const uint32_t column = threadIdx.x % 4 * 2 + e % 2;
      if (row >= num_rows || column >= columns) continue;
      f(e, first_column + column, static_cast<size_t>(row) * matrix.out_features);
    }
  };
  float before[4] = {};
  if constexpr (kMayAdd) {
    if (matrix.adds) {
      for_each([&](uint32_t e, uint32_t column, size_t row) {
        before[e] = static_cast<const float*>(matrix.y)[row + column];
      });
    }
  }
  const uint32_t high_rows = row_tiles > 1 ? num_rows - kTileRows : 0;
  const uint32_t low_rows = row_tiles > 1 ? kTileRows : num_rows;
  const auto load = [&](uint32_t k, Fragments<matrices>* to) {
    for (uint32_t i = 0; i < kSteps; ++i) {
      for (uint32_t m = 0; m < matrices; ++m) {
        LoadRows(weights + m * kSkinnyColumns * stride + k + i * 32, stride, columns, to->b[m][i]);
      }
      LoadRows(x + k + i * 32, stride, low_rows, to->low[i]);
      if constexpr (row_tiles > 1) {
        LoadRows(x + kTileRows * stride + k + i * 32, stride, high_rows, to->high[i]);
      }
    }
  };
  float d[matrices][4] = {};
  Fragments<matrices> now;
  load(0, &now);
  for (uint32_t k = 0; k < in; k += kSkinnyChunk) {
    Fragments<matrices> next;
    if (k + kSkinnyChunk < in) load(k + kSkinnyChunk, &next);
    for (uint32_t i = 0; i < kSteps; ++i) {
      for (uint32_t half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {now.low[i][half], now.high[i][half], now.low[i][half + 1],
                               now.high[i][half + 1]};
        for (uint32_t m = 0; m < matrices; ++m) {
          Mma<T>(d[m], a, now.b[m][i][half], now.b[m][i][half + 1]);
        }
      }
    }
    now = next;
  }
  for_each([&](uint32_t e, uint32_t column, size_t row) {
    float y = d[0][e];
    if constexpr (matrices == 2) {
      y = Gated<T>(matrix.act, d[0][e], d[1][e]);
    } else if (matrix.bias != nullptr) {
      y += matrix.bias[column];
    }
    if constexpr (kMayAdd) {
      if (matrix.adds) y += before[e];
    }
    static_cast<Y*>(matrix.y)[row + column] = FromFloat<Y>(y);
  });
}

template <typename T, typename Y, uint32_t matrices>
void Run(const SkinnyGemmArgs& args, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(args.matrix.out_features, kSkinnyColumns),
                             .block = kThreads,
                             .shared_bytes = ResidentBytes(args)};
  const ResidentArgs resident = {args, ResidentStride(args.matrix.in_features)};
  if constexpr (matrices == 2 || std::is_same_v<Y, float>) {
    if (args.matrix.norm_weight != nullptr) {
      return Launch(shape, ResidentGemmKernel<T, Y, 1, matrices, true>, resident, stream);
    }
  }
  Launch(shape,
         args.rows <= kTileRows ? ResidentGemmKernel<T, Y, 1, matrices, false>
                                : ResidentGemmKernel<T, Y, 2, matrices, false>,
         resident, stream);
}

template <typename T>
void RunOf(const SkinnyGemmArgs& args, Stream stream) {
  if (args.matrix.gated) return Run<T, T, 2>(args, stream);
  ForElement(args.matrix.y_type, [&](auto result) { Run<T, decltype(result), 1>(args, stream); });
}

}  // namespace

void ResidentGemm(const SkinnyGemmArgs& args, Stream stream) {
  if (args.matrix.type == Element::kFloat16) {
    RunOf<Half>(args, stream);
  } else {
    RunOf<BFloat16>(args, stream);
  }
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
