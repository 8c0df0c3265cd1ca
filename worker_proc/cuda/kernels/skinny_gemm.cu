#include "worker_proc/cuda/kernels/skinny_gemm.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kColumns = 8;  // of a warp
constexpr uint32_t kChunk = 128;  // of k, that is copied at once
constexpr uint32_t kStages = 12;
constexpr uint32_t kPad = 8;  // as mma_attention.cu's
constexpr uint32_t kChunkStride = kChunk + kPad;
constexpr uint32_t kWarpSize = kStages * kColumns * kChunkStride;  // elements of weights
constexpr uint32_t kTileRows = 8;

// Elements of a row of x in shared memory.
__device__ __forceinline__ uint32_t Padded(uint32_t in_features) {
  return (in_features + kChunk - 1) / kChunk * kChunk + kPad;
}
uint32_t SharedBytes(uint32_t in_features, uint32_t row_tiles, uint32_t warps) {
  const uint32_t x = CeilDiv(in_features, kChunk) * kChunk + kPad;
  return (row_tiles * kTileRows * x + warps * kWarpSize) * 2;
}

// Begins to copy the chunk of the warp's weights; zeros where there are none.
template <typename T>
__device__ __forceinline__ void FetchWeights(const GemvArgs& matrix, uint32_t first_column,
                                             uint32_t chunk, SharedSpan<T> weights) {
  constexpr uint32_t kPacks = kChunk / Pack<T>::kSize;
  for (uint32_t i = threadIdx.x % kWarp; i < kColumns * kPacks; i += kWarp) {
    const uint32_t column = first_column + i / kPacks;
    const uint32_t k = chunk * kChunk + i % kPacks * Pack<T>::kSize;
    const bool valid = column < matrix.out_features && k < matrix.in_features;
    const size_t from = valid ? static_cast<size_t>(column) * matrix.in_features + k : 0;
    const uint32_t to =
        (chunk % kStages * kColumns + i / kPacks) * kChunkStride + i % kPacks * Pack<T>::kSize;
    CopyAsync16(&weights[to], static_cast<const T*>(matrix.weight) + from, valid);
  }
}

template <typename T>
__device__ __forceinline__ void FetchRows(const SkinnyGemmArgs& args, uint32_t padded_rows,
                                          SharedSpan<T> x) {
  const uint32_t stride = Padded(args.matrix.in_features);
  const uint32_t packs = stride / Pack<T>::kSize;
  for (uint32_t i = threadIdx.x; i < padded_rows * packs; i += blockDim.x) {
    const uint32_t row = i / packs;
    const uint32_t k = i % packs * Pack<T>::kSize;
    const bool valid = row < args.rows && k < args.matrix.in_features;
    const size_t from = valid ? static_cast<size_t>(row) * args.matrix.in_features + k : 0;
    CopyAsync16(&x[row * stride + k], static_cast<const T*>(args.matrix.x) + from, valid);
  }
}

// row_tiles: of 8 rows.
template <typename T, typename Y, uint32_t row_tiles, uint32_t warps>
__global__ void __launch_bounds__(warps* kWarp) SkinnyGemmKernel(SkinnyGemmArgs args) {
  const GemvArgs& matrix = args.matrix;
  const uint32_t stride = Padded(matrix.in_features);
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t first_column = (blockIdx.x * warps + warp) * kColumns;
  const uint32_t chunks = (matrix.in_features + kChunk - 1) / kChunk;
  DynamicShared shared;
  const SharedSpan<T> x = shared.Take<T>(row_tiles * kTileRows * stride);
  const SharedSpan<T> weights = shared.Take<T>(warps * kWarpSize) + warp * kWarpSize;
  StartNext();
  for (uint32_t chunk = 0; chunk + 1 < kStages && chunk < chunks; ++chunk) {
    FetchWeights(matrix, first_column, chunk, weights);
  }
  AfterPrevious();
  FetchRows(args, row_tiles * kTileRows, x);
  CopyCommit();
  CopyWait<0>();
  __syncthreads();
  float d[4] = {};
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    CopyWait<kStages - 2>();
    __syncwarp();
    if (chunk + kStages - 1 < chunks) {
      FetchWeights(matrix, first_column, chunk + kStages - 1, weights);
    }
    CopyCommit();
    const SharedSpan<T> tile = weights + chunk % kStages * kColumns * kChunkStride;
    for (uint32_t k = 0; k < kChunk; k += 32) {
      uint32_t b[4];
      uint32_t low[4];
      uint32_t high[4] = {};
      LoadRows(tile + k, kChunkStride, b);
      LoadRows(x + chunk * kChunk + k, stride, low);
      if constexpr (row_tiles > 1) {
        LoadRows(x + kTileRows * stride + chunk * kChunk + k, stride, high);
      }
      for (uint32_t half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {low[half], high[half], low[half + 1], high[half + 1]};
        Mma<T>(d, a, b[half], b[half + 1]);
      }
    }
  }
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t row = lane / 4 + e / 2 * 8;
    const uint32_t column = first_column + lane % 4 * 2 + e % 2;
    if (row >= args.rows || column >= matrix.out_features) continue;
    const float sum = matrix.bias != nullptr ? d[e] + matrix.bias[column] : d[e];
    static_cast<Y*>(matrix.y)[static_cast<size_t>(row) * matrix.out_features + column] =
        FromFloat<Y>(sum);
  }
}

template <typename T, typename Y, uint32_t row_tiles>
void Run(const SkinnyGemmArgs& args, Stream stream) {
  constexpr uint32_t kManyTiles =
      1024;  // of columns; below, a warp a block reaches more of the GPU
  const uint32_t tiles = CeilDiv(args.matrix.out_features, kColumns);
  const auto launch = [&](auto kernel, uint32_t warps) {
    Launch({.grid_x = CeilDiv(tiles, warps),
            .block = warps * kWarp,
            .shared_bytes = SharedBytes(args.matrix.in_features, row_tiles, warps)},
           kernel, args, stream);
  };
  if (tiles < kManyTiles) {
    launch(SkinnyGemmKernel<T, Y, row_tiles, 1>, 1);
  } else {
    launch(SkinnyGemmKernel<T, Y, row_tiles, 3>, 3);
  }
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
