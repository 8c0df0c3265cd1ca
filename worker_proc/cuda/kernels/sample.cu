// Compiled without contraction: a weight must have the host's bits.
#include "worker_proc/cuda/kernels/sample.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / kWarp;
constexpr uint32_t kTile = 256;  // tokens
constexpr uint32_t kMaxTiles = kMaxSampleVocab / kTile;
constexpr uint32_t kBins = 256;
constexpr uint32_t kMargins = 10;
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
};

// The most likely token of the row; bad: NaN, infinity, or nothing finite.
__device__ __forceinline__ uint64_t Top(const float* row, uint32_t vocab, const Scratch& scratch,
                                        bool* bad) {
  uint64_t best = kAllKeys;
  uint64_t nan = 0;
  for (uint32_t i = threadIdx.x; i < vocab; i += kThreads) {
    const float logit = row[i];
    if (logit != logit) nan = 1;
    const uint64_t key = LikelihoodKey(logit, i);
    best = key < best ? key : best;
  }
  nan = BlockFold(nan, Sum(), scratch.warps);
  best = BlockFold(best, Least(), scratch.warps);
  const float max = row[static_cast<uint32_t>(best)];
  *bad = nan != 0 || !(max > -INFINITY && max < INFINITY);
  return best;
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

  __device__ bool Has(uint32_t i) const {
    const float logit = row[i];
    return logit >= bound && LikelihoodKey(logit, i) <= cutoff &&
           (least == 0 || weights(logit) >= least);
  }
  __device__ uint64_t Weight(uint32_t i) const { return Has(i) ? weights(row[i]) : 0; }
};

__device__ __forceinline__ uint64_t TotalOf(const Kept& kept, const Scratch& scratch) {
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < kept.vocab; i += kThreads) sum += kept.Weight(i);
  return BlockFold(sum, Sum(), scratch.warps);
}

// A bound that at least k logits reach, and not many more: the first of max - 1/4, - 1/2, - 1 …
__device__ __forceinline__ float BoundOfTop(const float* row, uint32_t vocab, float max, uint32_t k,
                                            const Scratch& scratch) {
  uint32_t counts[kMargins] = {};
  for (uint32_t i = threadIdx.x; i < vocab; i += kThreads) {
    const float below = max - row[i];
    for (uint32_t m = 0; m < kMargins; ++m) counts[m] += below <= 0.25f * (1u << m) ? 1 : 0;
  }
  float bound = kLowest;
  for (uint32_t m = kMargins; m-- > 0;) {
    if (BlockFold(counts[m], Sum(), scratch.warps) >= k) bound = max - 0.25f * (1u << m);
  }
  return bound;
}

// Among those kept: a key up to which lie the fewest most likely ones whose number (by_weight:
// whose weight) is at least `need`; kAllKeys: all of them are less. Digit by digit, from the top.
__device__ __forceinline__ uint64_t CutoffOf(const Kept& kept, bool by_weight, double need,
                                             const Scratch& scratch) {
  uint64_t prefix = 0;
  double before = 0;  // of what is more likely than the prefix
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
      scratch.sums[bin] = 0;
      scratch.counts[bin] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kept.vocab; i += kThreads) {
      if (!kept.Has(i)) continue;
      const uint64_t key = LikelihoodKey(kept.row[i], i);
      if (shift < 56 && key >> (shift + 8) != prefix) continue;
      const auto bin = static_cast<uint32_t>(key >> shift) % kBins;
      AtomicAdd64(&scratch.sums[bin], by_weight ? kept.weights(kept.row[i]) : 1);
      atomicAdd(&scratch.counts[bin], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t bin = 0;
      uint64_t sum = 0;
      while (bin < kBins && before + static_cast<double>(sum + scratch.sums[bin]) < need) {
        sum += scratch.sums[bin++];
      }
      scratch.found[0] = bin;
      scratch.found[1] = sum;
    }
    __syncthreads();
    const uint64_t bin = scratch.found[0];
    before += static_cast<double>(scratch.found[1]);
    const uint32_t alone = bin < kBins ? scratch.counts[bin] : 0;
    __syncthreads();
    if (bin == kBins) return kAllKeys;
    prefix = prefix << 8 | bin;
    // Of those kept no other key begins so, whatever follows.
    if (alone == 1) return shift == 0 ? prefix : (prefix << shift) | ((uint64_t{1} << shift) - 1);
  }
  return prefix;
}

// The first index where the running sum of values[0 … n) exceeds `target`, which is less than their
// sum; *before becomes the sum up to it. By one thread.
__device__ __forceinline__ uint32_t FindRunning(SharedSpan<uint64_t> values, uint32_t n,
                                                double target, uint64_t* before) {
  uint32_t i = 0;
  while (i + 1 < n && static_cast<double>(*before + values[i]) <= target) *before += values[i++];
  return i;
}

// The token where the running sum of the kept weights, in order of id, exceeds `target`.
__device__ __forceinline__ int32_t DrawFrom(const Kept& kept, double target,
                                            const Scratch& scratch) {
  const uint32_t tiles = (kept.vocab + kTile - 1) / kTile;
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t tile = threadIdx.x / kWarp; tile < tiles; tile += kWarps) {
    uint64_t sum = 0;
    for (uint32_t i = lane; i < kTile; i += kWarp) {
      if (tile * kTile + i < kept.vocab) sum += kept.Weight(tile * kTile + i);
    }
    sum = WarpFold(sum, Sum());
    if (lane == 0) scratch.sums[tile] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint64_t before = 0;
    scratch.found[0] = FindRunning(scratch.sums, tiles, target, &before);
    scratch.found[1] = before;
  }
  __syncthreads();
  const auto first = static_cast<uint32_t>(scratch.found[0]) * kTile;
  uint64_t before = scratch.found[1];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kTile; i += kThreads) {
    scratch.sums[i] = first + i < kept.vocab ? kept.Weight(first + i) : 0;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    scratch.found[0] = first + FindRunning(scratch.sums, kTile, target, &before);
  __syncthreads();
  const auto token = static_cast<int32_t>(scratch.found[0]);
  __syncthreads();
  return token;
}

// As Sampler::Draw of a temperature above 0.
__device__ __forceinline__ int32_t Draw(const SampleArgs& args, const SampleRow& row,
                                        const float* logits, float max, const Scratch& scratch) {
  Kept kept = {logits, args.vocab, kLowest, kAllKeys, 0, WeightsOf(args, max, row.to_log2)};
  if (row.min_p > 0)
    kept.least = static_cast<uint64_t>(ceilf(row.min_p * kept.weights.per_quantum));
  if (row.top_k > 0 && row.top_k < args.vocab) {
    kept.bound = BoundOfTop(logits, args.vocab, max, row.top_k, scratch);
    kept.cutoff = CutoffOf(kept, false, row.top_k, scratch);
  }
  uint64_t total = TotalOf(kept, scratch);
  const double per_quantum = kept.weights.per_quantum;
  if (row.top_p < 1) {
    // The product as the host rounds it: of the weights, not of their multiples.
    const double need = row.top_p * (static_cast<double>(total) / per_quantum) * per_quantum;
    const uint64_t cutoff = CutoffOf(kept, true, need, scratch);
    if (cutoff < kept.cutoff) kept.cutoff = cutoff;
    total = TotalOf(kept, scratch);
  }
  const double target = row.uniform * (static_cast<double>(total) / per_quantum) * per_quantum;
  return DrawFrom(kept, target, scratch);
}

// Of the raw logits: what the host needs for the token's logprob and the most likely ones.
__device__ __forceinline__ void Describe(const SampleArgs& args, const SampleRow& row,
                                         const float* logits, float max, int32_t token,
                                         const Scratch& scratch, SampledRow* out) {
  Kept all = {logits, args.vocab, -INFINITY, kAllKeys, 0, WeightsOf(args, max, weight::kLog2E)};
  const uint64_t total = TotalOf(all, scratch);
  const uint64_t own = LikelihoodKey(logits[token], static_cast<uint32_t>(token));
  uint64_t before = 0;
  for (uint32_t i = threadIdx.x; i < args.vocab; i += kThreads) {
    before += LikelihoodKey(logits[i], i) < own ? 1 : 0;
  }
  before = BlockFold(before, Sum(), scratch.warps);
  const uint32_t num_top = row.num_top < args.vocab ? row.num_top : args.vocab;
  if (num_top > 0) {
    all.bound = BoundOfTop(logits, args.vocab, max, num_top, scratch);
    // Fewer may be finite.
    const uint64_t cutoff = CutoffOf(all, false, num_top, scratch);
    all.bound = cutoff == kAllKeys ? -INFINITY : all.bound;
    all.cutoff = cutoff == kAllKeys ? CutoffOf(all, false, num_top, scratch) : cutoff;
    if (threadIdx.x == 0) scratch.counts[0] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.vocab; i += kThreads) {
      if (all.Has(i)) out->top[atomicAdd(&scratch.counts[0], 1u)] = LikelihoodKey(logits[i], i);
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  out->max = max;
  out->logit = logits[token];
  out->rank = static_cast<uint32_t>(before) + 1;
  out->num_top = num_top;
  out->total = total;
}

// ---- Kernels ------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads, 1) SampleRowsKernel(SampleArgs args) {
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  FLOTILLA_SHARED(uint64_t, sums, kMaxTiles);
  FLOTILLA_SHARED(uint32_t, counts, kBins);
  FLOTILLA_SHARED(uint64_t, found, 2);
  const Scratch scratch = {warps, sums, counts, found};
  const SampleRow row = args.rows[blockIdx.x];
  SampledRow* const out = args.out + blockIdx.x;
  const float* const raw = args.logits + static_cast<size_t>(row.row) * args.vocab;
  const float* const logits =
      row.adjusted ? args.adjusted + static_cast<size_t>(row.row) * args.vocab : raw;
  bool bad = false;
  const uint64_t raw_top = Top(raw, args.vocab, scratch, &bad);
  const uint64_t top = bad || !row.adjusted ? raw_top : Top(logits, args.vocab, scratch, &bad);
  int32_t token = -1;
  if (!bad) {
    token = row.given;
    if (token < 0) token = static_cast<int32_t>(static_cast<uint32_t>(top));
    if (row.given < 0 && !row.greedy) token = Draw(args, row, logits, logits[token], scratch);
    if (row.num_top != kNoTop) {
      const float max = raw[static_cast<uint32_t>(raw_top)];
      Describe(args, row, raw, max, token, scratch, out);
    }
  }
  if (threadIdx.x != 0) return;
  out->token = token;
  out->bad = bad ? 1 : 0;
}

constexpr uint32_t kAdjustThreads = 256;

// A block a row: the copy, then what changes single logits of it, list by list, since a token may
// be in several.
__global__ void __launch_bounds__(kAdjustThreads) AdjustLogitsKernel(SampleArgs args) {
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
  Launch({.grid_x = args.num_rows, .block = kAdjustThreads}, AdjustLogitsKernel, args, stream);
  Launch({.grid_x = args.num_rows, .block = kThreads}, SampleRowsKernel, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
