// Compiled without contraction: a weight must have the host's bits.
#include "worker_proc/cuda/kernels/sample.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/sample_row.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

// Block (x, y): chunk y of row x.
__global__ void __launch_bounds__(kThreads) TopOfChunksKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  const SampleRow row = args.rows[blockIdx.x];
  const TileRange tiles = TilesOf(args, blockIdx.y);
  const uint32_t end = tiles.end * kTile < args.vocab ? tiles.end * kTile : args.vocab;
  for (uint32_t adjusted = 0; adjusted <= (row.adjusted ? 1u : 0u); ++adjusted) {
    const float* const logits = LogitsOf(args, row, adjusted != 0);
    const uint64_t top = TopOf(logits, tiles.begin * kTile, end, warps);
    if (threadIdx.x == 0) TopsOf(args, blockIdx.x, adjusted != 0)[blockIdx.y] = top;
  }
}

__global__ void __launch_bounds__(kThreads) SumOfChunksKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  const SampleRow row = args.rows[blockIdx.x];
  if (!row.drawn_from_all) return;
  const float* const logits = LogitsOf(args, row, row.adjusted);
  bool bad = false;
  const uint32_t top = Top(args, logits, row.adjusted, &bad);
  if (bad) return;
  const uint32_t tiles = NumTiles(args.vocab);
  SumTiles(KeptOf(args, row, logits, logits[top]), TilesOf(args, blockIdx.y),
           args.sums + static_cast<size_t>(blockIdx.x) * tiles);
}

__global__ void __launch_bounds__(kThreads) SampleRowsKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  FLOTILLA_SHARED(uint64_t, sums, kMaxTiles);
  FLOTILLA_SHARED(uint64_t, found, 2);
  FLOTILLA_SHARED(uint32_t, no_counts, 1);
  FLOTILLA_SHARED(uint64_t, no_list, 1);
  const Scratch scratch = {warps, sums, no_counts, found, no_list, no_list};
  const RowView view = ViewRow(args);
  const SampleRow& row = view.row;
  if (row.searches) return;
  int32_t token = row.given < 0 ? static_cast<int32_t>(view.top) : row.given;
  if (!view.bad && row.drawn_from_all) {
    token = DrawFromAll(args, row, view.logits, view.logits[view.top], scratch);
  }
  WriteToken(args, token, view.bad);
}

constexpr uint32_t kAdjustThreads = 256;

// A block a row: the copy, then what changes single logits of it, list by list, since a token may
// be in several.
__global__ void __launch_bounds__(kAdjustThreads) AdjustLogitsKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  const SampleRow row = args.rows[blockIdx.x];
  if (!row.adjusted) return;
  const size_t begin = static_cast<size_t>(row.row) * args.vocab;
  const float* const from = args.logits + begin;
  float* const to = args.adjusted + begin;
  const uint32_t* const mask = args.masks + row.mask;
  for (uint32_t i = threadIdx.x; i < args.vocab; i += kAdjustThreads) {
    const bool allowed = !row.has_mask || (mask[i / 32] >> i % 32 & 1u) != 0;
    to[i] = allowed ? from[i] : -INFINITY;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; row.bans && i < args.num_banned; i += kAdjustThreads) {
    to[args.banned[i]] = -INFINITY;
  }
  __syncthreads();
  for (uint32_t i = row.biases[0] + threadIdx.x; i < row.biases[1]; i += kAdjustThreads) {
    to[args.biases[i].token] += args.biases[i].bias;
  }
  __syncthreads();
  for (uint32_t i = row.penalties[0] + threadIdx.x; i < row.penalties[1]; i += kAdjustThreads) {
    const SamplePenalty& penalty = args.penalties[i];
    const float logit = to[penalty.token];
    const float above = logit > 0 ? logit : 0.0f;
    const float below = logit - above;
    const float repeated = above / penalty.repetition + below * penalty.repetition;
    to[penalty.token] = (repeated - penalty.frequency) - penalty.presence;
  }
}

}  // namespace

void SampleRows(const SampleArgs& args, Stream stream) {
  if (args.num_rows == 0) return;
  const LaunchShape rows = {.grid_x = args.num_rows, .block = kThreads};
  const LaunchShape chunks = {.grid_x = args.num_rows, .grid_y = args.chunks, .block = kThreads};
  if (args.any_adjusted) {
    Launch({.grid_x = args.num_rows, .block = kAdjustThreads}, AdjustLogitsKernel, args, stream);
  }
  Launch(chunks, TopOfChunksKernel, args, stream);
  if (args.any_drawn) Launch(chunks, SumOfChunksKernel, args, stream);
  if (args.any_simple) Launch(rows, SampleRowsKernel, args, stream);
  if (args.any_search) SearchRows(args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
