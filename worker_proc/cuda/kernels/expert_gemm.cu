#include "worker_proc/cuda/kernels/expert_gemm.h"

#include "worker_proc/cuda/kernels/activation.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kColumns = kExpertColumns;
constexpr uint32_t kThreads = 128;
constexpr uint32_t kWarps = kThreads / kWarp;

// What a product's sums become; gated: two of them.
template <typename T, uint32_t matrices>
__device__ __forceinline__ void StoreSum(const ExpertGemmArgs& args, uint32_t row, uint32_t column,
                                         const float (&sums)[matrices]) {
  const size_t at = static_cast<size_t>(row) * args.out_features + column;
  if constexpr (matrices == 2) {
    static_cast<T*>(args.y)[at] = FromFloat<T>(Gated<T>(args.act, sums[0], sums[1]));
  } else {
    static_cast<float*>(args.y)[at] = sums[0];
  }
}

// Where the row of x begins that a tile's row multiplies.
template <typename T>
__device__ __forceinline__ const T* RowOfX(const ExpertGemmArgs& args, uint32_t row) {
  const uint32_t of_x = args.row_tokens == nullptr ? row : args.row_tokens[row];
  return static_cast<const T*>(args.x) + static_cast<size_t>(of_x) * args.in_features;
}
// Where the row of weights begins that gives a column, of one of `matrices` matrices.
template <typename T, uint32_t matrices>
__device__ __forceinline__ const T* RowOfWeights(const ExpertGemmArgs& args, uint32_t expert,
                                                 uint32_t matrix, uint32_t column) {
  const size_t row = (static_cast<size_t>(expert) * matrices + matrix) * args.out_features + column;
  return static_cast<const T*>(args.weights) + row * args.in_features;
}

// ---- By the tensor cores ----------------------------------------------------------------------

constexpr uint32_t kMmaRows = 16;
constexpr uint32_t kChunk = 64;  // of k: what is copied at once
constexpr uint32_t kStride = kChunk + 8;
constexpr uint32_t kStages = 4;

// What a stage has in shared memory.
template <uint32_t row_tiles, uint32_t matrices>
struct Stage {
  static constexpr uint32_t kWeights = matrices * kColumns * kStride;
  static constexpr uint32_t kX = row_tiles * kMmaRows * kStride;
  static constexpr uint32_t kBytes = kStages * (kWeights + kX) * 2;
  static_assert(kBytes <= kMostSharedBytes);
};

// A thread copies one pack of each kCopyStep-th row, of weights and of x; whose rows these are it
// finds out once.
template <typename T, uint32_t row_tiles, uint32_t matrices>
class Copies {
 public:
  using Sizes = Stage<row_tiles, matrices>;

  __device__ Copies(const ExpertGemmArgs& args, const ExpertTile& tile, SharedSpan<T> weights,
                    SharedSpan<T> x)
      : in_features_(args.in_features), weights_(weights), x_(x) {
    FLOTILLA_UNROLL
    for (uint32_t i = 0; i < kWeightRows; ++i) {
      const uint32_t row = Row() + i * kCopyStep;
      const uint32_t column = blockIdx.x * kColumns + row % kColumns;
      if (column < args.out_features) {
        from_weights_[i] =
            RowOfWeights<T, matrices>(args, tile.expert, row / kColumns, column) + At();
      }
    }
    FLOTILLA_UNROLL
    for (uint32_t i = 0; i < row_tiles; ++i) {
      const uint32_t row = Row() + i * kCopyStep;
      if (row < tile.rows) from_x_[i] = RowOfX<T>(args, tile.first_row + row) + At();
    }
  }

  // Begins to copy a chunk: zeros for rows and columns that are not the tile's.
  __device__ void Fetch(const ExpertGemmArgs& args, uint32_t chunk) const {
    const uint32_t k = chunk * kChunk;
    if (k >= in_features_) return;
    const bool valid = k + At() < in_features_;
    const uint32_t to = Row() * kStride + At();
    const uint32_t stage = chunk % kStages;
    FLOTILLA_UNROLL
    for (uint32_t i = 0; i < kWeightRows; ++i) {
      Copy(from_weights_[i], k, valid, static_cast<const T*>(args.weights),
           &weights_[stage * Sizes::kWeights + i * kCopyStep * kStride + to]);
    }
    FLOTILLA_UNROLL
    for (uint32_t i = 0; i < row_tiles; ++i) {
      Copy(from_x_[i], k, valid, static_cast<const T*>(args.x),
           &x_[stage * Sizes::kX + i * kCopyStep * kStride + to]);
    }
  }

 private:
  static constexpr uint32_t kPacks = kChunk / Pack<T>::kSize;  // of a row
  static constexpr uint32_t kCopyStep = kThreads / kPacks;
  static constexpr uint32_t kWeightRows = matrices * kColumns / kCopyStep;
  static_assert(kCopyStep == kMmaRows);

  static __device__ uint32_t Row() { return threadIdx.x / kPacks; }
  static __device__ uint32_t At() { return threadIdx.x % kPacks * Pack<T>::kSize; }
  static __device__ void Copy(const T* row, uint32_t k, bool valid, const T* readable, T* to) {
    const bool copies = valid && row != nullptr;
    CopyAsync16(to, copies ? row + k : readable, copies);
  }

  const uint32_t in_features_;
  const SharedSpan<T> weights_;
  const SharedSpan<T> x_;
  const T* from_weights_[kWeightRows] = {};  // null: there is no such column
  const T* from_x_[row_tiles] = {};
};

// row_tiles: of 16 rows, as many as a tile may have. With one, each warp has 8 of the block's
// columns; with four, a warp has 16 rows and all of them.
template <typename T, uint32_t matrices, uint32_t row_tiles>
__global__ void __launch_bounds__(kThreads) ExpertGemmKernel(ExpertGemmArgs args) {
  using Sizes = Stage<row_tiles, matrices>;
  static_assert(row_tiles == 1 || row_tiles == kWarps);
  constexpr uint32_t kGroups = row_tiles == 1 ? kColumns / 8 / kWarps : kColumns / 8;
  DynamicShared shared;
  const SharedSpan<T> weights = shared.Take<T>(kStages * Sizes::kWeights);
  const SharedSpan<T> x = shared.Take<T>(kStages * Sizes::kX);
  StartNext();
  AfterPrevious();
  const ExpertTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t first_row = row_tiles == 1 ? 0 : warp * kMmaRows;
  const uint32_t first_group = row_tiles == 1 ? warp * kGroups : 0;
  const Copies<T, row_tiles, matrices> copies(args, tile, weights, x);
  const uint32_t chunks = (args.in_features + kChunk - 1) / kChunk;
  for (uint32_t chunk = 0; chunk + 1 < kStages; ++chunk) {
    copies.Fetch(args, chunk);
    CopyCommit();
  }
  float d[matrices][kGroups][4] = {};
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    CopyWait<kStages - 2>();
    __syncthreads();  // the chunk is there, and nobody computes with the one before any more
    copies.Fetch(args, chunk + kStages - 1);
    CopyCommit();
    if (first_row >= tile.rows) continue;
    const SharedSpan<T> of_x = x + (chunk % kStages * Sizes::kX + first_row * kStride);
    const SharedSpan<T> of_weights = weights + chunk % kStages * Sizes::kWeights;
    FLOTILLA_UNROLL
    for (uint32_t k = 0; k < kChunk; k += 32) {
      uint32_t a[2][4];
      for (uint32_t half = 0; half < 2; ++half) {
        LoadMatrix(of_x + (k + half * 16), kStride, a[half]);
      }
      for (uint32_t m = 0; m < matrices; ++m) {
        for (uint32_t g = 0; g < kGroups; ++g) {
          uint32_t b[4];
          LoadRows(of_weights + ((m * kColumns + (first_group + g) * 8) * kStride + k), kStride, 8,
                   b);
          Mma<T>(d[m][g], a[0], b[0], b[1]);
          Mma<T>(d[m][g], a[1], b[2], b[3]);
        }
      }
    }
  }
  FLOTILLA_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    FLOTILLA_UNROLL
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t row = first_row + threadIdx.x % kWarp / 4 + e / 2 * 8;
      const uint32_t column =
          blockIdx.x * kColumns + (first_group + g) * 8 + threadIdx.x % 4 * 2 + e % 2;
      if (row >= tile.rows || column >= args.out_features) continue;
      float sums[matrices];
      for (uint32_t m = 0; m < matrices; ++m) sums[m] = d[m][g][e];
      StoreSum<T>(args, tile.first_row + row, column, sums);
    }
  }
}

// ---- For float32, and widths that the tensor cores don't take ---------------------------------

constexpr uint32_t kPlainRows = 16;
constexpr uint32_t kPlainStride = kChunk + 1;
constexpr uint32_t kThreadColumns = kColumns * kPlainRows / kThreads;

// A thread has kThreadColumns columns of each 16th row.
template <typename T, uint32_t matrices>
__global__ void __launch_bounds__(kThreads) PlainExpertGemmKernel(ExpertGemmArgs args) {
  FLOTILLA_SHARED(float, x, kPlainRows* kPlainStride);
  FLOTILLA_SHARED(float, weights, matrices* kColumns* kPlainStride);
  StartNext();
  AfterPrevious();
  const ExpertTile tile = args.tiles[blockIdx.y];
  const uint32_t first_column = blockIdx.x * kColumns;
  const uint32_t my_row = threadIdx.x % kPlainRows;
  const uint32_t my_column = threadIdx.x / kPlainRows * kThreadColumns;
  for (uint32_t first_row = 0; first_row < tile.rows; first_row += kPlainRows) {
    float sums[kThreadColumns][matrices] = {};
    for (uint32_t begin = 0; begin < args.in_features; begin += kChunk) {
      const uint32_t left = args.in_features - begin;
      const uint32_t count = left < kChunk ? left : kChunk;
      __syncthreads();  // nobody computes with the chunk before any more
      for (uint32_t i = threadIdx.x; i < kPlainRows * kChunk; i += kThreads) {
        const uint32_t row = first_row + i / kChunk;
        const uint32_t k = i % kChunk;
        if (row >= tile.rows || k >= count) continue;
        x[i / kChunk * kPlainStride + k] =
            ToFloat(RowOfX<T>(args, tile.first_row + row)[begin + k]);
      }
      for (uint32_t i = threadIdx.x; i < matrices * kColumns * kChunk; i += kThreads) {
        const uint32_t matrix = i / kChunk / kColumns;
        const uint32_t column = first_column + i / kChunk % kColumns;
        const uint32_t k = i % kChunk;
        if (column >= args.out_features || k >= count) continue;
        weights[i / kChunk * kPlainStride + k] =
            ToFloat(RowOfWeights<T, matrices>(args, tile.expert, matrix, column)[begin + k]);
      }
      __syncthreads();
      if (first_row + my_row >= tile.rows) continue;
      for (uint32_t k = 0; k < count; ++k) {
        const float value = x[my_row * kPlainStride + k];
        for (uint32_t m = 0; m < matrices; ++m) {
          for (uint32_t c = 0; c < kThreadColumns; ++c) {
            const float weight = weights[(m * kColumns + my_column + c) * kPlainStride + k];
            sums[c][m] = fmaf(weight, value, sums[c][m]);
          }
        }
      }
    }
    if (first_row + my_row >= tile.rows) continue;
    for (uint32_t c = 0; c < kThreadColumns; ++c) {
      const uint32_t column = first_column + my_column + c;
      if (column >= args.out_features) continue;
      StoreSum<T>(args, tile.first_row + first_row + my_row, column, sums[c]);
    }
  }
}

template <typename T, uint32_t matrices>
void Run(const ExpertGemmArgs& args, Stream stream) {
  LaunchShape shape = {
      .grid_x = CeilDiv(args.out_features, kColumns), .grid_y = args.num_tiles, .block = kThreads};
  if constexpr (!std::is_same_v<T, float>) {
    if (args.in_features % kMmaRows == 0) {
      constexpr uint32_t kWideTiles = kWideTileRows / kMmaRows;
      static_assert(kNarrowTileRows == kMmaRows);
      if (args.tile_rows == kNarrowTileRows) {
        shape.shared_bytes = Stage<1, matrices>::kBytes;
        return Launch(shape, ExpertGemmKernel<T, matrices, 1>, args, stream);
      }
      shape.shared_bytes = Stage<kWideTiles, matrices>::kBytes;
      return Launch(shape, ExpertGemmKernel<T, matrices, kWideTiles>, args, stream);
    }
  }
  Launch(shape, PlainExpertGemmKernel<T, matrices>, args, stream);
}

// ---- A token's rows ---------------------------------------------------------------------------

// Block (x, y): the columns from y * kThreads * n on of token x.
template <uint32_t n>
__global__ void __launch_bounds__(kThreads) CombineKernel(CombineArgs args) {
  StartNext();
  AfterPrevious();
  const uint32_t c = (blockIdx.y * kThreads + threadIdx.x) * n;
  if (c >= args.cols) return;
  const size_t token = blockIdx.x;
  float sums[n] = {};
  for (uint32_t k = 0; k < args.top_k; ++k) {
    const float weight = args.weights[token * args.top_k + k];
    const size_t row = args.token_rows[token * args.top_k + k];
    float values[n];
    LoadRun(args.y + row * args.cols + c, values);
    for (uint32_t i = 0; i < n; ++i) sums[i] = fmaf(weight, values[i], sums[i]);
  }
  StoreRun(args.out + token * args.cols + c, sums);
}

template <uint32_t n>
void RunCombine(const CombineArgs& args, Stream stream) {
  Launch({.grid_x = args.tokens, .grid_y = CeilDiv(args.cols, kThreads * n), .block = kThreads},
         CombineKernel<n>, args, stream);
}

}  // namespace

void ExpertGemm(const ExpertGemmArgs& args, Stream stream) {
  if (args.out_features == 0 || args.num_tiles == 0) return;  // a rank without a share
  ForElement(args.type, [&](auto element) {
    using T = decltype(element);
    args.gated ? Run<T, 2>(args, stream) : Run<T, 1>(args, stream);
  });
}

void CombineExperts(const CombineArgs& args, Stream stream) {
  if (args.cols == 0 || args.tokens == 0) return;
  args.cols % kRun == 0 ? RunCombine<kRun>(args, stream) : RunCombine<1>(args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
