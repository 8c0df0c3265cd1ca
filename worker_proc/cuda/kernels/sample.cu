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

// Calls f(token, logit) for this thread's share of a row: in packs, several of which are on their
// way at once, if rows begin where packs do.
template <typename F>
__device__ __forceinline__ void ForEachLogit(const float* row, uint32_t vocab, const F& f) {
  constexpr uint32_t kPack = Pack<float>::kSize;
  constexpr uint32_t kAtOnce = 4;  // packs
  uint32_t done = 0;
  if (vocab % kPack == 0) {
    for (; done + kAtOnce * kPack * kThreads <= vocab; done += kAtOnce * kPack * kThreads) {
      Pack<float> packs[kAtOnce];
      for (uint32_t p = 0; p < kAtOnce; ++p) {
        packs[p] = Load16(row + done + (p * kThreads + threadIdx.x) * kPack);
      }
      for (uint32_t p = 0; p < kAtOnce; ++p) {
        const uint32_t first = done + (p * kThreads + threadIdx.x) * kPack;
        for (uint32_t i = 0; i < kPack; ++i) f(first + i, packs[p].v[i]);
      }
    }
  }
  for (uint32_t i = done + threadIdx.x; i < vocab; i += kThreads) f(i, row[i]);
}

// The most likely token of the row; bad: NaN, infinity, or nothing finite.
__device__ __forceinline__ uint64_t Top(const float* row, uint32_t vocab, const Scratch& scratch,
                                        bool* bad) {
  uint64_t best = kAllKeys;
  uint64_t nan = 0;
  ForEachLogit(row, vocab, [&](uint32_t token, float logit) {
    if (logit != logit) nan = 1;
    const uint64_t key = LikelihoodKey(logit, token);
    best = key < best ? key : best;
  });
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
  ForEachLogit(kept.row, kept.vocab,
               [&](uint32_t token, float logit) { sum += kept.Weight(token, logit); });
  return BlockFold(sum, Sum(), scratch.warps);
}

// A bound that at least k logits reach, and not many more: the first of max - 1/4, - 1/2, - 1 …
__device__ __forceinline__ float BoundOfTop(const float* row, uint32_t vocab, float max, uint32_t k,
                                            const Scratch& scratch) {
  uint32_t counts[kMargins] = {};
  ForEachLogit(row, vocab, [&](uint32_t /*token*/, float logit) {
    const float below = max - logit;
    for (uint32_t m = 0; m < kMargins; ++m) counts[m] += below <= 0.25f * (1u << m) ? 1 : 0;
  });
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
    ForEachLogit(kept.row, kept.vocab, [&](uint32_t token, float logit) {
      if (!kept.Has(token, logit)) return;
      const uint64_t key = LikelihoodKey(logit, token);
      if (shift < 56 && key >> (shift + 8) != prefix) return;
      const auto bin = static_cast<uint32_t>(key >> shift) % kBins;
      AtomicAdd64(&scratch.sums[bin], by_weight ? kept.weights(logit) : 1);
      atomicAdd(&scratch.counts[bin], 1u);
    });
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

// The first of values[0 … n) where the running sum exceeds `target`, which is less than their sum;
// scratch.found becomes it and the sum up to it. By one warp: a lane sums a run of them, and one
// looks through its run.
__device__ __forceinline__ void FindRunning(SharedSpan<uint64_t> values, uint32_t n, double target,
                                            uint64_t before, const Scratch& scratch) {
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
  const uint32_t beyond =
      __ballot_sync(kAllLanes, begin<end&& static_cast<double>(before + up_to)> target);
  uint32_t finder = 0;
  while (beyond != 0 && (beyond >> finder & 1u) == 0) ++finder;
  if (beyond == 0) finder = (n - 1) / run;  // rounding: the last
  if (lane != finder) return;
  uint64_t running = before + (up_to - sum);
  uint32_t i = begin;
  while (i + 1 < end && static_cast<double>(running + values[i]) <= target) running += values[i++];
  scratch.found[0] = i;
  scratch.found[1] = running;
}

// The weights of each tile of kTile tokens, into scratch.sums, and of all of them.
__device__ __forceinline__ uint64_t SumTiles(const Kept& kept, const Scratch& scratch) {
  constexpr uint32_t kPack = Pack<float>::kSize;
  constexpr uint32_t kPacks = kTile / kWarp / kPack;  // of a lane
  const uint32_t tiles = (kept.vocab + kTile - 1) / kTile;
  const uint32_t lane = threadIdx.x % kWarp;
  uint64_t all = 0;
  for (uint32_t tile = threadIdx.x / kWarp; tile < tiles; tile += kWarps) {
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
    all += sum;
    sum = WarpFold(sum, Sum());
    if (lane == 0) scratch.sums[tile] = sum;
  }
  return BlockFold(all, Sum(), scratch.warps);
}

// The token where the running sum of the kept weights, in order of id, exceeds the share `uniform`
// of them all.
__device__ __forceinline__ int32_t DrawFrom(const Kept& kept, double uniform,
                                            const Scratch& scratch) {
  const double per_quantum = kept.weights.per_quantum;
  const uint64_t total = SumTiles(kept, scratch);
  // The product as the host rounds it: of the weights, not of their multiples.
  const double target = uniform * (static_cast<double>(total) / per_quantum) * per_quantum;
  if (threadIdx.x < kWarp) {
    FindRunning(scratch.sums, (kept.vocab + kTile - 1) / kTile, target, 0, scratch);
  }
  __syncthreads();
  const auto first = static_cast<uint32_t>(scratch.found[0]) * kTile;
  const uint64_t before = scratch.found[1];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kTile; i += kThreads) {
    scratch.sums[i] = first + i < kept.vocab ? kept.Weight(first + i, kept.row[first + i]) : 0;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) FindRunning(scratch.sums, kTile, target, before, scratch);
  __syncthreads();
  const auto token = static_cast<int32_t>(first + scratch.found[0]);
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
  if (row.top_p < 1) {
    const double per_quantum = kept.weights.per_quantum;
    const auto total = static_cast<double>(TotalOf(kept, scratch));
    const double need = row.top_p * (total / per_quantum) * per_quantum;  // as DrawFrom rounds
    const uint64_t cutoff = CutoffOf(kept, true, need, scratch);
    if (cutoff < kept.cutoff) kept.cutoff = cutoff;
  }
  return DrawFrom(kept, row.uniform, scratch);
}

// Of the raw logits: what the host needs for the token's logprob and the most likely ones.
__device__ __forceinline__ void Describe(const SampleArgs& args, const SampleRow& row,
                                         const float* logits, float max, int32_t token,
                                         const Scratch& scratch, SampledRow* out) {
  Kept all = {logits, args.vocab, -INFINITY, kAllKeys, 0, WeightsOf(args, max, weight::kLog2E)};
  const uint64_t total = TotalOf(all, scratch);
  const uint64_t own = LikelihoodKey(logits[token], static_cast<uint32_t>(token));
  uint64_t before = 0;
  ForEachLogit(logits, args.vocab,
               [&](uint32_t i, float logit) { before += LikelihoodKey(logit, i) < own ? 1 : 0; });
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
    ForEachLogit(logits, args.vocab, [&](uint32_t i, float logit) {
      if (all.Has(i, logit)) out->top[atomicAdd(&scratch.counts[0], 1u)] = LikelihoodKey(logit, i);
    });
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
  StartNext();
  AfterPrevious();
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
  Launch({.grid_x = args.num_rows, .block = kAdjustThreads}, AdjustLogitsKernel, args, stream);
  Launch({.grid_x = args.num_rows, .block = kThreads}, SampleRowsKernel, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
