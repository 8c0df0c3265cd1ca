#include "worker_proc/cuda/kernels/packed_gemm.h"

#include "worker_proc/cuda/kernels/activation.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/packed_blocks.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kColumns = 8;  // of a warp
constexpr uint32_t kTileRows = 16;
constexpr uint32_t kChunk = 256;  // of k: what is copied at once
constexpr uint32_t kXStride = kChunk + 8;
constexpr uint32_t kMostWarps = 4;

// What a block keeps in shared memory. Each stage has a chunk of each warp's rows of weights, as
// they lie in memory from the 16 bytes on in which they begin, and the same chunk of the rows of x.
template <DType dtype, uint32_t row_tiles, uint32_t matrices>
struct Stages {
  using Group = PackedGroup<dtype, SharedSpan<uint8_t>>;
  static constexpr uint32_t kChunkBytes = kChunk / Group::kValues * Group::kBytes;
  // Rows begin at even addresses; an odd number of packs, so that they begin in different banks.
  static constexpr uint32_t kPacks = CeilDiv(kChunkBytes + 14, 16) | 1;
  static constexpr uint32_t kRowBytes = kPacks * 16;
  static constexpr uint32_t kWarpRows = matrices * kColumns;
  static constexpr uint32_t kWarpBytes = kWarpRows * kRowBytes;
  static constexpr uint32_t kWarps = kMostWarps / matrices;
  static constexpr uint32_t kXElements = row_tiles * kTileRows * kXStride;
  static constexpr uint32_t kFit = kMostSharedBytes / (kWarps * kWarpBytes + kXElements * 2);
  static constexpr uint32_t kCount = kFit < 6 ? kFit : 6;
  static_assert(kCount >= 2);
  static constexpr uint32_t Bytes(uint32_t warps) {
    return kCount * (warps * kWarpBytes + kXElements * 2);
  }
};

template <DType dtype, typename T, uint32_t row_tiles, uint32_t matrices>
__global__ void __launch_bounds__(kMostWarps* kWarp) PackedGemmKernel(PackedGemmArgs args) {
  using Stage = Stages<dtype, row_tiles, matrices>;
  using Group = typename Stage::Group;
  constexpr uint32_t kGroups = Group::kValues / kGroup;  // of a block
  const GemvArgs& matrix = args.matrix;
  const uint32_t in = matrix.in_features;
  const uint32_t warps = blockDim.x / kWarp;
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t first_column = (blockIdx.x * warps + warp) * kColumns;
  const uint32_t chunks = (in + kChunk - 1) / kChunk;
  const uint32_t row_bytes = in / Group::kValues * Group::kBytes;
  DynamicShared shared;
  const SharedSpan<uint8_t> weights =
      shared.Take<uint8_t>(Stage::kCount * warps * Stage::kWarpBytes);
  const SharedSpan<T> x = shared.Take<T>(Stage::kCount * Stage::kXElements);
  // Where a row's chunk begins; columns that there are not are the last.
  const auto address_of = [&](uint32_t row, uint32_t chunk) {
    const uint32_t wanted = first_column + row % kColumns;
    const uint32_t column = wanted < matrix.out_features ? wanted : matrix.out_features - 1;
    const size_t at = column + static_cast<size_t>(row / kColumns) * matrix.out_features;
    return reinterpret_cast<uintptr_t>(matrix.weight) + at * row_bytes + chunk * Stage::kChunkBytes;
  };
  const auto fetch_weights = [&](uint32_t chunk) {
    if (chunk >= chunks) return;
    const uint32_t left = row_bytes - chunk * Stage::kChunkBytes;
    const uint32_t bytes = left < Stage::kChunkBytes ? left : Stage::kChunkBytes;
    const SharedSpan<uint8_t> to =
        weights + (chunk % Stage::kCount * warps + warp) * Stage::kWarpBytes;
    for (uint32_t i = lane; i < Stage::kWarpRows * Stage::kPacks; i += kWarp) {
      const uint32_t row = i / Stage::kPacks;
      const uint32_t pack = i % Stage::kPacks * 16;
      const uintptr_t begin = address_of(row, chunk);
      const uint32_t offset = begin % 16;
      if (pack >= offset + bytes) continue;
      CopyAsync16(&to[row * Stage::kRowBytes + pack],
                  reinterpret_cast<const uint8_t*>(begin - offset + pack), true);
    }
  };
  const auto fetch_x = [&](uint32_t chunk) {
    if (chunk >= chunks) return;
    constexpr uint32_t kPacks = kChunk / Pack<T>::kSize;
    const SharedSpan<T> to = x + chunk % Stage::kCount * Stage::kXElements;
    for (uint32_t i = threadIdx.x; i < args.rows * kPacks; i += blockDim.x) {
      const uint32_t row = i / kPacks;
      const uint32_t k = i % kPacks * Pack<T>::kSize;
      if (chunk * kChunk + k >= in) continue;
      CopyAsync16(
          &to[row * kXStride + k],
          static_cast<const T*>(matrix.x) + static_cast<size_t>(row) * in + chunk * kChunk + k,
          true);
    }
  };
  StartNext();
  for (uint32_t chunk = 0; chunk + 1 < Stage::kCount; ++chunk) fetch_weights(chunk);
  AfterPrevious();
  for (uint32_t chunk = 0; chunk + 1 < Stage::kCount; ++chunk) {
    fetch_x(chunk);
    CopyCommit();
  }
  float d[matrices][row_tiles][4] = {};
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    CopyWait<Stage::kCount - 2>();
    __syncthreads();  // the chunk is there, and nobody computes with the one before any more
    fetch_weights(chunk + Stage::kCount - 1);
    fetch_x(chunk + Stage::kCount - 1);
    CopyCommit();
    uint32_t offsets[matrices];  // of the lane's rows of weights
    for (uint32_t m = 0; m < matrices; ++m) {
      const uint32_t row = m * kColumns + lane / 4;
      offsets[m] = (chunk % Stage::kCount * warps + warp) * Stage::kWarpBytes +
                   row * Stage::kRowBytes + address_of(row, chunk) % 16;
    }
    const SharedSpan<T> tile = x + chunk % Stage::kCount * Stage::kXElements;
    const uint32_t left = in - chunk * kChunk;
    const uint32_t end = left < kChunk ? left : kChunk;
    for (uint32_t k = 0; k < end; k += kGroup) {
      const uint32_t g = k / kGroup;
      uint32_t b[matrices][2];
      for (uint32_t m = 0; m < matrices; ++m) {
        const Group group(weights + (offsets[m] + g / kGroups * Group::kBytes), g % kGroups);
        for (uint32_t i = 0; i < 2; ++i) {
          float two[2];
          group.Two(lane % 4 * 2 + i * 8, two);
          b[m][i] = PairBits<T>(two[0], two[1]);
        }
      }
      for (uint32_t t = 0; t < row_tiles; ++t) {
        uint32_t a[4];
        LoadMatrix(tile + (t * kTileRows * kXStride + k), kXStride, a);
        for (uint32_t m = 0; m < matrices; ++m) Mma<T>(d[m][t], a, b[m][0], b[m][1]);
      }
    }
  }
  FLOTILLA_UNROLL
  for (uint32_t t = 0; t < row_tiles; ++t) {
    FLOTILLA_UNROLL
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t row = t * kTileRows + lane / 4 + e / 2 * 8;
      const uint32_t column = first_column + lane % 4 * 2 + e % 2;
      if (row >= args.rows || column >= matrix.out_features) continue;
      float y = d[0][t][e];
      if constexpr (matrices == 2) {
        y = Gated<T>(matrix.act, d[0][t][e], d[1][t][e]);
      } else if (matrix.bias != nullptr) {
        y += matrix.bias[column];
      }
      const size_t at = static_cast<size_t>(row) * args.y_stride + column;
      if (matrix.y_type == Element::kFloat32) {
        static_cast<float*>(matrix.y)[at] = y;
      } else {
        static_cast<T*>(matrix.y)[at] = FromFloat<T>(y);
      }
    }
  }
}

template <DType dtype, typename T, uint32_t row_tiles, uint32_t matrices>
void Run(const PackedGemmArgs& args, Stream stream) {
  using Stage = Stages<dtype, row_tiles, matrices>;
  // Enough blocks for a GPU's processors first, then wide ones, which share their rows of x.
  constexpr uint32_t kEnoughBlocks = 128;
  uint32_t warps = Stage::kWarps;
  while (warps > 1 && args.matrix.out_features < kEnoughBlocks * warps * kColumns) warps /= 2;
  Launch({.grid_x = CeilDiv(args.matrix.out_features, warps * kColumns),
          .block = warps * kWarp,
          .shared_bytes = Stage::Bytes(warps)},
         PackedGemmKernel<dtype, T, row_tiles, matrices>, args, stream);
}

template <DType dtype, typename T>
void RunRows(const PackedGemmArgs& args, Stream stream) {
  if (args.matrix.gated) {
    args.rows <= kTileRows ? Run<dtype, T, 1, 2>(args, stream) : Run<dtype, T, 2, 2>(args, stream);
  } else {
    args.rows <= kTileRows ? Run<dtype, T, 1, 1>(args, stream) : Run<dtype, T, 2, 1>(args, stream);
  }
}

}  // namespace

void PackedGemm(const PackedGemmArgs& args, Stream stream) {
  static_assert(kPackedRows == 2 * kTileRows);
  const GemvArgs& matrix = args.matrix;
  PackedGemmArgs part = args;
  for (uint32_t row = 0; row < args.rows; row += kPackedRows) {
    part.rows = args.rows - row < kPackedRows ? args.rows - row : kPackedRows;
    part.matrix.x = static_cast<const std::byte*>(matrix.x) + size_t{row} * matrix.in_features * 2;
    part.matrix.y = static_cast<std::byte*>(matrix.y) +
                    size_t{row} * args.y_stride * ElementBytes(matrix.y_type);
    ForPackedAs(args.weight_dtype, matrix.type, [&](auto dtype, auto element) {
      RunRows<dtype(), decltype(element)>(part, stream);
    });
  }
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
