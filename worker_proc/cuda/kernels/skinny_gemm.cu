#include "worker_proc/cuda/kernels/skinny_gemm.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kColumns = kSkinnyColumns;  // of a warp, which is a block
constexpr uint32_t kChunk = kSkinnyChunk;
constexpr uint32_t kStages = 8;
constexpr uint32_t kStride = kChunk + kSkinnyPad;
constexpr uint32_t kTileRows = 8;

// Begins to copy the chunk of rows [first, first + rows) of a matrix of `count` rows; zeros where
// there are none.
template <typename T>
__device__ __forceinline__ void FetchChunk(const void* matrix, uint32_t in_features, uint32_t chunk,
                                           uint32_t first, uint32_t rows, uint32_t count,
                                           SharedSpan<T> to) {
  constexpr uint32_t kPacks = kChunk / Pack<T>::kSize;
  for (uint32_t i = threadIdx.x; i < rows * kPacks; i += kWarp) {
    const uint32_t row = first + i / kPacks;
    const uint32_t k = chunk * kChunk + i % kPacks * Pack<T>::kSize;
    const bool valid = row < count && k < in_features;
    const size_t from = valid ? static_cast<size_t>(row) * in_features + k : 0;
    CopyAsync16(&to[i / kPacks * kStride + i % kPacks * Pack<T>::kSize],
                static_cast<const T*>(matrix) + from, valid);
  }
}

// row_tiles: of 8 rows.
template <typename T, typename Y, uint32_t row_tiles>
__global__ void __launch_bounds__(kWarp) SkinnyGemmKernel(SkinnyGemmArgs args) {
  constexpr uint32_t kRows = row_tiles * kTileRows;
  const GemvArgs& matrix = args.matrix;
  const uint32_t first_column = blockIdx.x * kColumns;
  const uint32_t chunks = (matrix.in_features + kChunk - 1) / kChunk;
  DynamicShared shared;
  const SharedSpan<T> weights = shared.Take<T>(kStages * kColumns * kStride);
  const SharedSpan<T> x = shared.Take<T>(kStages * kRows * kStride);
  const auto weights_of = [&](uint32_t chunk) {
    return weights + chunk % kStages * kColumns * kStride;
  };
  const auto x_of = [&](uint32_t chunk) { return x + chunk % kStages * kRows * kStride; };
  const auto fetch_weights = [&](uint32_t chunk) {
    if (chunk >= chunks) return;
    FetchChunk(matrix.weight, matrix.in_features, chunk, first_column, kColumns,
               matrix.out_features, weights_of(chunk));
  };
  const auto fetch_x = [&](uint32_t chunk) {
    if (chunk >= chunks) return;
    FetchChunk(matrix.x, matrix.in_features, chunk, 0, kRows, args.rows, x_of(chunk));
  };
  StartNext();
  if (matrix.weight_is_new) AfterPrevious();
  for (uint32_t chunk = 0; chunk + 1 < kStages; ++chunk) fetch_weights(chunk);
  AfterPrevious();
  for (uint32_t chunk = 0; chunk + 1 < kStages; ++chunk) {
    fetch_x(chunk);
    CopyCommit();
  }
  float d[4] = {};
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    CopyWait<kStages - 2>();
    __syncwarp();  // the chunk is there, and no lane computes with the one before any more
    fetch_weights(chunk + kStages - 1);
    fetch_x(chunk + kStages - 1);
    CopyCommit();
    const SharedSpan<T> tile = weights_of(chunk);
    const SharedSpan<T> rows = x_of(chunk);
    for (uint32_t k = 0; k < kChunk; k += 32) {
      uint32_t b[4];
      uint32_t low[4];
      uint32_t high[4] = {};
      LoadRows(tile + k, kStride, kColumns, b);
      LoadRows(rows + k, kStride, kTileRows, low);
      if constexpr (row_tiles > 1) {
        LoadRows(rows + kTileRows * kStride + k, kStride, kTileRows, high);
      }
      for (uint32_t half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {low[half], high[half], low[half + 1], high[half + 1]};
        Mma<T>(d, a, b[half], b[half + 1]);
      }
    }
  }
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t row = threadIdx.x / 4 + e / 2 * 8;
    const uint32_t column = first_column + threadIdx.x % 4 * 2 + e % 2;
    if (row >= args.rows || column >= matrix.out_features) continue;
    const float sum = matrix.bias != nullptr ? d[e] + matrix.bias[column] : d[e];
    static_cast<Y*>(matrix.y)[static_cast<size_t>(row) * matrix.out_features + column] =
        FromFloat<Y>(sum);
  }
}

template <typename T, typename Y, uint32_t row_tiles>
void Run(const SkinnyGemmArgs& args, Stream stream) {
  constexpr uint32_t kElements = kStages * (kColumns + row_tiles * kTileRows) * kStride;
  Launch({.grid_x = CeilDiv(args.matrix.out_features, kColumns),
          .block = kWarp,
          .shared_bytes = kElements * static_cast<uint32_t>(sizeof(T))},
         SkinnyGemmKernel<T, Y, row_tiles>, args, stream);
}

template <typename T, typename Y>
void RunRows(const SkinnyGemmArgs& args, Stream stream) {
  if (args.rows <= kTileRows) {
    Run<T, Y, 1>(args, stream);
  } else {
    Run<T, Y, 2>(args, stream);
  }
}

}  // namespace

void SkinnyGemm(const SkinnyGemmArgs& args, Stream stream) {
  if (args.rows == 0) return;
  if (IsResident(args)) return ResidentGemm(args, stream);
  ForElement(args.matrix.y_type, [&](auto y) {
    using Y = decltype(y);
    if (args.matrix.type == Element::kFloat16) {
      RunRows<Half, Y>(args, stream);
    } else {
      RunRows<BFloat16, Y>(args, stream);
    }
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
