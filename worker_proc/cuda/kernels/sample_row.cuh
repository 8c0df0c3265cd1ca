// What the kernels of sample.h have in common: a row's logits, weights and tiles, sums over a
// block, and the draw from tiles' sums. Compiled without contraction: a weight must have the host's
// bits.
//
// Threads: a block of kThreads. Errors: none.
#pragma once

#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/cuda/kernels/sample.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cuda {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / kWarp;
constexpr uint32_t kTile = kSampleTile;
constexpr uint32_t kMaxTiles = kMaxSampleVocab / kTile;
constexpr uint32_t kBins = 256;
constexpr uint32_t kMaxListed = 2048;  // tokens; a power of two
constexpr uint64_t kAllKeys = UINT64_MAX;
constexpr float kLowest = -3.402823466e38f;  // what is masked is below

// ---- Of a block ---------------------------------------------------------------------------------

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Least {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a < b ? a : b; }
};

// On every lane.
template <typename Op>
__device__ __forceinline__ uint64_t WarpFold(uint64_t value, const Op& op) {
  for (uint32_t lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// On every thread. `warps`: an element a warp.
template <typename Op>
__device__ __forceinline__ uint64_t BlockFold(uint64_t value, const Op& op,
                                              SharedSpan<uint64_t> warps) {
  value = WarpFold(value, op);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = warps[0];
  for (uint32_t warp = 1; warp < kWarps; ++warp) value = op(value, warps[warp]);
  __syncthreads();
  return value;
}

// ---- A row --------------------------------------------------------------------------------------

// runner/candidates.h: a smaller key is more likely.
__device__ __forceinline__ uint64_t LikelihoodKey(float logit, uint32_t token) {
  const uint32_t bits = FloatBits(logit + 0.0f);  // -0 becomes +0
  const uint32_t falling = (bits >> 31) != 0 ? bits : 0x7fffffffu - bits;
  return static_cast<uint64_t>(falling) << 32 | token;
}

// The weight of cpu/sampler_kernels_reference.cc, operation by operation, in multiples of the
// quantum.
struct Weights {
  float max;
  float to_log2;
  float lowest;
  float low_round;
  float per_quantum;

  __device__ uint64_t operator()(float logit) const {
    using namespace weight;
    float x = logit - max;
    x = x > lowest ? x : lowest;
    const float shifted = fmaf(x, to_log2, kRound);
    const float r = fmaf(x, to_log2, -(shifted - kRound));
    float p = kP5;
    p = fmaf(p, r, kP4);
    p = fmaf(p, r, kP3);
    p = fmaf(p, r, kP2);
    p = fmaf(p, r, kP1);
    p = fmaf(p, r, 1.0f);
    const float e = FloatOfBits(FloatBits(p) + (FloatBits(shifted) << 23));
    const float high = (e + kHighRound) - kHighRound;
    const float low = ((e - high) + low_round) - low_round;
    return static_cast<uint64_t>((high + low) * per_quantum);  // a whole number
  }
};

__device__ __forceinline__ float PowerOfTwo(int32_t n) {
  return FloatOfBits(static_cast<uint32_t>(127 + n) << 23);
}

__device__ __forceinline__ Weights WeightsOf(const SampleArgs& args, float max, float to_log2) {
  const float quantum = PowerOfTwo(-args.quantum_bits);
  return {max, to_log2, weight::kLeastT / to_log2, weight::kRound * quantum,
          PowerOfTwo(args.quantum_bits)};
}

// What a block shares.
struct Scratch {
  SharedSpan<uint64_t> warps;   // [kWarps]
  SharedSpan<uint64_t> sums;    // [kMaxTiles]
  SharedSpan<uint32_t> counts;  // [kBins]
  SharedSpan<uint64_t> found;   // [2]
  // The list: tokens' keys and weights.
  SharedSpan<uint64_t> keys;     // [kMaxListed]
  SharedSpan<uint64_t> weights;  // [kMaxListed]
};

// Calls f(token, logit) for this thread's share of the tokens [begin, end) of a row: in packs,
// several of which are on their way at once, if rows begin where packs do. begin: a multiple of
// kTile.
template <typename F>
__device__ __forceinline__ void ForEachLogit(const float* row, uint32_t begin, uint32_t end,
                                             const F& f) {
  constexpr uint32_t kPack = Pack<float>::kSize;
  constexpr uint32_t kAtOnce = 4;  // packs
  if (reinterpret_cast<uintptr_t>(row) % sizeof(Pack<float>) == 0) {
    for (; begin + kAtOnce * kPack * kThreads <= end; begin += kAtOnce * kPack * kThreads) {
      Pack<float> packs[kAtOnce];
      for (uint32_t p = 0; p < kAtOnce; ++p) {
        packs[p] = Load16(row + begin + (p * kThreads + threadIdx.x) * kPack);
      }
      for (uint32_t p = 0; p < kAtOnce; ++p) {
        const uint32_t first = begin + (p * kThreads + threadIdx.x) * kPack;
        for (uint32_t i = 0; i < kPack; ++i) f(first + i, packs[p].v[i]);
      }
    }
  }
  for (uint32_t i = begin + threadIdx.x; i < end; i += kThreads) f(i, row[i]);
}

// SampleTiles, for the device.
__device__ __forceinline__ uint32_t NumTiles(uint32_t vocab) { return (vocab + kTile - 1) / kTile; }

// The tiles [begin, end) of a chunk of a row.
struct TileRange {
  uint32_t begin;
  uint32_t end;
};
__device__ __forceinline__ TileRange TilesOf(const SampleArgs& args, uint32_t chunk) {
  const uint32_t tiles = NumTiles(args.vocab);
  const auto first = [&](uint32_t c) { return c * tiles / args.chunks; };
  return {first(chunk), first(chunk + 1)};
}

// Where the keys of a row's chunks are, of its adjusted logits or the raw ones.
__device__ __forceinline__ uint64_t* TopsOf(const SampleArgs& args, uint32_t row, bool adjusted) {
  return args.tops + (static_cast<size_t>(row) * 2 + (adjusted ? 1 : 0)) * args.chunks;
}

// NaN's, before all others.
constexpr uint64_t kNanKey = 0;

// The most likely token of logits; by a block.
__device__ __forceinline__ uint64_t TopOf(const float* row, uint32_t begin, uint32_t end,
                                          SharedSpan<uint64_t> warps) {
  uint64_t best = kAllKeys;
  ForEachLogit(row, begin, end, [&](uint32_t token, float logit) {
    const uint64_t key = logit == logit ? LikelihoodKey(logit, token) : kNanKey;
    best = key < best ? key : best;
  });
  return BlockFold(best, Least(), warps);
}

// Of a whole row, of its chunks'. bad: NaN, infinity, or nothing finite.
__device__ __forceinline__ uint32_t Top(const SampleArgs& args, const float* row, bool adjusted,
                                        bool* bad) {
  const uint64_t* const tops = TopsOf(args, blockIdx.x, adjusted);
  uint64_t best = kAllKeys;
  for (uint32_t chunk = 0; chunk < args.chunks; ++chunk) {
    best = tops[chunk] < best ? tops[chunk] : best;
  }
  const auto token = static_cast<uint32_t>(best);
  const float max = row[token];
  *bad = best == kNanKey || !(max > -INFINITY && max < INFINITY);
  return token;
}

// Those of a row that are looked at: logits of at least `bound`, keys up to `cutoff`, weights of at
// least `least`.
struct Kept {
  const float* row;
  uint32_t vocab;
  float bound;
  uint64_t cutoff;
  uint64_t least;
  Weights weights;

  __device__ bool Has(uint32_t token, float logit) const {
    return logit >= bound && LikelihoodKey(logit, token) <= cutoff &&
           (least == 0 || weights(logit) >= least);
  }
  __device__ uint64_t Weight(uint32_t token, float logit) const {
    return Has(token, logit) ? weights(logit) : 0;
  }
};

__device__ __forceinline__ uint64_t TotalOf(const Kept& kept, const Scratch& scratch) {
  uint64_t sum = 0;
  ForEachLogit(kept.row, 0, kept.vocab,
               [&](uint32_t token, float logit) { sum += kept.Weight(token, logit); });
  return BlockFold(sum, Sum(), scratch.warps);
}

struct Exceeds {
  double target;
  __device__ bool operator()(uint64_t sum) const { return static_cast<double>(sum) > target; }
};
struct Reaches {
  double need;
  __device__ bool operator()(uint64_t sum) const { return static_cast<double>(sum) >= need; }
};

// The first of values[0 … n) up to which the sum, with `before`, is enough; the last if none is.
// scratch.found becomes it and the sum in front of it. By one warp: a lane sums a run of them, and
// one looks through its run.
template <typename Enough>
__device__ __forceinline__ void FindRunning(SharedSpan<uint64_t> values, uint32_t n,
                                            const Enough& enough, uint64_t before,
                                            const Scratch& scratch) {
  const uint32_t lane = threadIdx.x;
  const uint32_t run = (n + kWarp - 1) / kWarp;
  const uint32_t begin = lane * run < n ? lane * run : n;
  const uint32_t end = begin + run < n ? begin + run : n;
  uint64_t sum = 0;
  for (uint32_t i = begin; i < end; ++i) sum += values[i];
  uint64_t up_to = sum;  // of this lane's run and those before
  for (uint32_t lanes = 1; lanes < kWarp; lanes *= 2) {
    const uint64_t other = __shfl_sync(kAllLanes, up_to, lane >= lanes ? lane - lanes : lane);
    up_to += lane >= lanes ? other : 0;
  }
  const bool is_enough = begin < end && enough(before + up_to);
  const uint32_t candidates = __ballot_sync(kAllLanes, is_enough);
  uint32_t finder = (n - 1) / run;
  for (uint32_t l = kWarp; l-- > 0;) {
    if ((candidates >> l & 1u) != 0) finder = l;
  }
  if (lane != finder) return;
  uint64_t running = before + (up_to - sum);
  uint32_t i = begin;
  while (i + 1 < end && !enough(running + values[i])) running += values[i++];
  scratch.found[0] = i;
  scratch.found[1] = running;
}

// The weights of each tile of kTile tokens, to sums[tile]; by a block.
template <typename Sums>
__device__ __forceinline__ void SumTiles(const Kept& kept, const TileRange& tiles,
                                         const Sums& sums) {
  constexpr uint32_t kPack = Pack<float>::kSize;
  constexpr uint32_t kPacks = kTile / kWarp / kPack;  // of a lane
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t tile = tiles.begin + threadIdx.x / kWarp; tile < tiles.end; tile += kWarps) {
    const uint32_t first = tile * kTile;
    uint64_t sum = 0;
    if (kept.vocab % kPack == 0 && first + kTile <= kept.vocab) {
      Pack<float> packs[kPacks];
      for (uint32_t p = 0; p < kPacks; ++p) {
        packs[p] = Load16(kept.row + first + (p * kWarp + lane) * kPack);
      }
      for (uint32_t p = 0; p < kPacks; ++p) {
        const uint32_t token = first + (p * kWarp + lane) * kPack;
        for (uint32_t i = 0; i < kPack; ++i) sum += kept.Weight(token + i, packs[p].v[i]);
      }
    } else {
      for (uint32_t i = first + lane; i < first + kTile && i < kept.vocab; i += kWarp) {
        sum += kept.Weight(i, kept.row[i]);
      }
    }
    sum = WarpFold(sum, Sum());
    if (lane == 0) sums[tile] = sum;
  }
}

// The share of the sum, as the host rounds the product: of the weights, not of their multiples.
__device__ __forceinline__ double ShareOf(double share, uint64_t total, const Weights& weights) {
  const double per_quantum = weights.per_quantum;
  return share * (static_cast<double>(total) / per_quantum) * per_quantum;
}

// The token where the running sum of the kept weights, in order of id, exceeds the share `uniform`
// of them all. scratch.sums has the tiles'.
__device__ __forceinline__ int32_t DrawFrom(const Kept& kept, double uniform,
                                            const Scratch& scratch) {
  const uint32_t tiles = NumTiles(kept.vocab);
  uint64_t total = 0;
  for (uint32_t tile = threadIdx.x; tile < tiles; tile += kThreads) total += scratch.sums[tile];
  total = BlockFold(total, Sum(), scratch.warps);
  const Exceeds exceeds = {ShareOf(uniform, total, kept.weights)};
  if (threadIdx.x < kWarp) FindRunning(scratch.sums, tiles, exceeds, 0, scratch);
  __syncthreads();
  const auto first = static_cast<uint32_t>(scratch.found[0]) * kTile;
  const uint64_t before = scratch.found[1];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kTile; i += kThreads) {
    scratch.sums[i] = first + i < kept.vocab ? kept.Weight(first + i, kept.row[first + i]) : 0;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) FindRunning(scratch.sums, kTile, exceeds, before, scratch);
  __syncthreads();
  const auto token = static_cast<int32_t>(first + scratch.found[0]);
  __syncthreads();
  return token;
}

__device__ __forceinline__ Kept KeptOf(const SampleArgs& args, const SampleRow& row,
                                       const float* logits, float max) {
  Kept kept = {logits, args.vocab, kLowest, kAllKeys, 0, WeightsOf(args, max, row.to_log2)};
  if (row.min_p > 0) {
    kept.least = static_cast<uint64_t>(ceilf(row.min_p * kept.weights.per_quantum));
  }
  return kept;
}

// As Sampler::Draw of a temperature above 0, of rows that SumOfChunks has summed.
__device__ __forceinline__ int32_t DrawFromAll(const SampleArgs& args, const SampleRow& row,
                                               const float* logits, float max,
                                               const Scratch& scratch) {
  const uint32_t tiles = NumTiles(args.vocab);
  const uint64_t* const sums = args.sums + static_cast<size_t>(blockIdx.x) * tiles;
  for (uint32_t i = threadIdx.x; i < tiles; i += kThreads) scratch.sums[i] = sums[i];
  __syncthreads();
  return DrawFrom(KeptOf(args, row, logits, max), row.uniform, scratch);
}

// The logits of row blockIdx.x that it is drawn from.
__device__ __forceinline__ const float* LogitsOf(const SampleArgs& args, const SampleRow& row,
                                                 bool adjusted) {
  return (adjusted ? args.adjusted : args.logits) + static_cast<size_t>(row.row) * args.vocab;
}

// A row, where its logits are and the most likely token of them, raw and as it is drawn.
struct RowView {
  SampleRow row;
  const float* raw = nullptr;
  const float* logits = nullptr;
  uint32_t raw_top = 0;
  uint32_t top = 0;
  bool bad = false;
};
__device__ __forceinline__ RowView ViewRow(const SampleArgs& args) {
  RowView view;
  view.row = args.rows[blockIdx.x];
  view.raw = LogitsOf(args, view.row, false);
  view.logits = LogitsOf(args, view.row, view.row.adjusted);
  view.raw_top = Top(args, view.raw, false, &view.bad);
  view.top = view.raw_top;
  if (!view.bad && view.row.adjusted) view.top = Top(args, view.logits, true, &view.bad);
  return view;
}

__device__ __forceinline__ void WriteToken(const SampleArgs& args, int32_t token, bool bad) {
  if (threadIdx.x != 0) return;
  const int32_t slot = args.rows[blockIdx.x].slot;
  if (slot >= 0) args.last_tokens[slot] = bad ? -1 : token;
  args.out[blockIdx.x].token = bad ? -1 : token;
  args.out[blockIdx.x].bad = bad ? 1 : 0;
}

}  // namespace flotilla::cuda
