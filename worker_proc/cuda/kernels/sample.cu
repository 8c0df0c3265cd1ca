// Compiled without contraction: a weight must have the host's bits.
#include "worker_proc/cuda/kernels/sample.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / kWarp;
constexpr uint32_t kTile = kSampleTile;
constexpr uint32_t kMaxTiles = kMaxSampleVocab / kTile;
constexpr uint32_t kBins = 256;
constexpr uint32_t kMargins = 10;
constexpr uint32_t kReaches = 8;
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

// The tiles [begin, end) of a chunk of a row.
struct Tiles {
  uint32_t begin;
  uint32_t end;
};
__device__ __forceinline__ Tiles TilesOf(const SampleArgs& args, uint32_t chunk) {
  const uint32_t tiles = (args.vocab + kTile - 1) / kTile;
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

// A bound that at least k logits reach, and not many more: the first of max - 1/4, - 1/2, - 1 …, or
// if that leaves too many for a list, one of kBins between it and the one before.
__device__ __forceinline__ float BoundOfTop(const float* row, uint32_t vocab, float max, uint32_t k,
                                            const Scratch& scratch) {
  uint32_t counts[kMargins] = {};
  ForEachLogit(row, 0, vocab, [&](uint32_t /*token*/, float logit) {
    const float below = max - logit;
    for (uint32_t m = 0; m < kMargins; ++m) counts[m] += below <= 0.25f * (1u << m) ? 1 : 0;
  });
  float margin = INFINITY;
  uint64_t reached = vocab;
  for (uint32_t m = kMargins; m-- > 0;) {
    const uint64_t reach_it = BlockFold(counts[m], Sum(), scratch.warps);
    if (reach_it < k) continue;
    margin = 0.25f * (1u << m);
    reached = reach_it;
  }
  if (margin == INFINITY) return kLowest;
  if (reached <= kMaxListed) return max - margin;
  const float half = margin / 2;
  const float width = half / kBins;
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) scratch.counts[bin] = 0;
  __syncthreads();
  ForEachLogit(row, 0, vocab, [&](uint32_t /*token*/, float logit) {
    const float below = max - logit;
    if (!(below <= margin)) return;
    const float bin = below > half ? (below - half) / width : 0;
    atomicAdd(&scratch.counts[bin < kBins ? static_cast<uint32_t>(bin) : kBins - 1], 1u);
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t bin = 0;
    uint32_t sum = scratch.counts[0];
    while (bin + 1 < kBins && sum < k) sum += scratch.counts[++bin];
    scratch.found[0] = bin;
  }
  __syncthreads();
  // One bin more than it takes, however their edges are rounded.
  const float bins = static_cast<float>(scratch.found[0] + 2);
  __syncthreads();
  return max - fminf(half + bins * width, margin);
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
    ForEachLogit(kept.row, 0, kept.vocab, [&](uint32_t token, float logit) {
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
__device__ __forceinline__ void SumTiles(const Kept& kept, const Tiles& tiles, const Sums& sums) {
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
  const uint32_t tiles = (kept.vocab + kTile - 1) / kTile;
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

// ---- The list: what top-k, top-p and the most likely tokens are taken from, if it is short enough
// --

// How far a logit is below the largest, in powers of two of its weight.
__device__ __forceinline__ float Below(const Weights& weights, float logit) {
  return (weights.max - logit) * weights.to_log2;
}
__device__ __forceinline__ float ReachOf(uint32_t i) {
  constexpr float kOf[kReaches] = {1, 2, 3, 4, 6, 8, 11, 15};
  float reach = kOf[0];
  for (uint32_t j = 1; j < kReaches; ++j) reach = i >= j ? kOf[j] : reach;
  return reach;
}

// So far below the largest lie tokens of the share `top_p` of all weights, and not many more;
// infinity: farther than anything that is tried. total: of all.
__device__ __forceinline__ float ReachOfShare(const Kept& kept, double top_p,
                                              const Scratch& scratch, uint64_t* total) {
  uint64_t sums[kReaches] = {};
  uint64_t sum = 0;
  ForEachLogit(kept.row, 0, kept.vocab, [&](uint32_t token, float logit) {
    const uint64_t weight = kept.Weight(token, logit);
    const float below = Below(kept.weights, logit);
    sum += weight;
    for (uint32_t i = 0; i < kReaches; ++i) sums[i] += below <= ReachOf(i) ? weight : 0;
  });
  *total = BlockFold(sum, Sum(), scratch.warps);
  const Reaches reaches = {ShareOf(top_p, *total, kept.weights)};
  float reach = INFINITY;
  for (uint32_t i = kReaches; i-- > 0;) {
    if (reaches(BlockFold(sums[i], Sum(), scratch.warps))) reach = ReachOf(i);
  }
  return reach;
}

// Puts those kept that are not farther than `reach` on the list, in no order. Returns how many
// there are; more than kMaxListed: the list is of no use.
__device__ __forceinline__ uint32_t List(const Kept& kept, float reach, const Scratch& scratch) {
  if (threadIdx.x == 0) scratch.counts[0] = 0;
  __syncthreads();
  ForEachLogit(kept.row, 0, kept.vocab, [&](uint32_t token, float logit) {
    if (!kept.Has(token, logit) || !(Below(kept.weights, logit) <= reach)) return;
    const uint32_t at = atomicAdd(&scratch.counts[0], 1u);
    if (at >= kMaxListed) return;
    scratch.keys[at] = LikelihoodKey(logit, token);
    scratch.weights[at] = kept.weights(logit);
  });
  __syncthreads();
  const uint32_t n = scratch.counts[0];
  __syncthreads();
  return n;
}

// The first n of the list by rising keys; by a bitonic network.
__device__ __forceinline__ void SortList(uint32_t n, const Scratch& scratch) {
  uint32_t padded = 2;
  while (padded < n) padded *= 2;
  for (uint32_t i = n + threadIdx.x; i < padded; i += kThreads) {
    scratch.keys[i] = kAllKeys;
    scratch.weights[i] = 0;
  }
  __syncthreads();
  for (uint32_t size = 2; size <= padded; size *= 2) {
    for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
      for (uint32_t i = threadIdx.x; i < padded / 2; i += kThreads) {
        const uint32_t low = 2 * i - (i & (stride - 1));
        const uint32_t high = low + stride;
        const uint64_t a = scratch.keys[low];
        const uint64_t b = scratch.keys[high];
        if ((a > b) != ((low & size) == 0)) continue;
        scratch.keys[low] = b;
        scratch.keys[high] = a;
        const uint64_t weight = scratch.weights[low];
        scratch.weights[low] = scratch.weights[high];
        scratch.weights[high] = weight;
      }
      __syncthreads();
    }
  }
}

// Of the first n of the list.
__device__ __forceinline__ uint64_t SumList(uint32_t n, const Scratch& scratch) {
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < n; i += kThreads) sum += scratch.weights[i];
  return BlockFold(sum, Sum(), scratch.warps);
}

// From the n of the list, which begin with all that top-k and top-p leave. total: of all weights
// that top-p is a share of; 0: of those that top-k leaves.
__device__ __forceinline__ int32_t DrawFromList(const SampleRow& row, const Weights& weights,
                                                uint32_t n, uint64_t total,
                                                const Scratch& scratch) {
  SortList(n, scratch);
  uint32_t kept = row.top_k > 0 && row.top_k < n ? row.top_k : n;
  if (row.top_p < 1) {
    if (total == 0) total = SumList(kept, scratch);
    const Reaches reaches = {ShareOf(row.top_p, total, weights)};
    if (threadIdx.x < kWarp) FindRunning(scratch.weights, kept, reaches, 0, scratch);
    __syncthreads();
    kept = static_cast<uint32_t>(scratch.found[0]) + 1;
    __syncthreads();
  }
  const Exceeds exceeds = {ShareOf(row.uniform, SumList(kept, scratch), weights)};
  for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    scratch.keys[i] = static_cast<uint32_t>(scratch.keys[i]);  // the token: in order of id
  }
  SortList(kept, scratch);
  if (threadIdx.x < kWarp) FindRunning(scratch.weights, kept, exceeds, 0, scratch);
  __syncthreads();
  const auto token = static_cast<int32_t>(scratch.keys[scratch.found[0]]);
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
  const uint32_t tiles = (args.vocab + kTile - 1) / kTile;
  const uint64_t* const sums = args.sums + static_cast<size_t>(blockIdx.x) * tiles;
  for (uint32_t i = threadIdx.x; i < tiles; i += kThreads) scratch.sums[i] = sums[i];
  __syncthreads();
  return DrawFrom(KeptOf(args, row, logits, max), row.uniform, scratch);
}

// The same of others.
__device__ __forceinline__ int32_t DrawFromSome(const SampleArgs& args, const SampleRow& row,
                                                const float* logits, float max,
                                                const Scratch& scratch) {
  const uint32_t tiles = (args.vocab + kTile - 1) / kTile;
  Kept kept = KeptOf(args, row, logits, max);
  const bool has_top_k = row.top_k > 0 && row.top_k < args.vocab;
  float reach = INFINITY;
  uint64_t total = 0;
  if (has_top_k) {
    kept.bound = BoundOfTop(logits, args.vocab, max, row.top_k, scratch);
  } else {
    reach = ReachOfShare(kept, row.top_p, scratch, &total);
  }
  const uint32_t listed = List(kept, reach, scratch);
  if (listed <= kMaxListed) return DrawFromList(row, kept.weights, listed, total, scratch);
  if (has_top_k) kept.cutoff = CutoffOf(kept, false, row.top_k, scratch);
  if (row.top_p < 1) {
    if (has_top_k) total = TotalOf(kept, scratch);
    const double need = ShareOf(row.top_p, total, kept.weights);
    const uint64_t cutoff = CutoffOf(kept, true, need, scratch);
    if (cutoff < kept.cutoff) kept.cutoff = cutoff;
  }
  SumTiles(kept, Tiles{0, tiles}, scratch.sums);
  __syncthreads();
  return DrawFrom(kept, row.uniform, scratch);
}

// The most likely tokens, of many; fewer may be finite.
__device__ __forceinline__ void DescribeMany(Kept* all, uint32_t num_top, const Scratch& scratch,
                                             SampledRow* out) {
  const uint64_t cutoff = CutoffOf(*all, false, num_top, scratch);
  all->bound = cutoff == kAllKeys ? -INFINITY : all->bound;
  all->cutoff = cutoff == kAllKeys ? CutoffOf(*all, false, num_top, scratch) : cutoff;
  if (threadIdx.x == 0) scratch.counts[0] = 0;
  __syncthreads();
  ForEachLogit(all->row, 0, all->vocab, [&](uint32_t i, float logit) {
    if (all->Has(i, logit)) out->top[atomicAdd(&scratch.counts[0], 1u)] = LikelihoodKey(logit, i);
  });
  __syncthreads();
}

// Of the raw logits: what the host needs for the token's logprob and the most likely ones.
__device__ __forceinline__ void Describe(const SampleArgs& args, const SampleRow& row,
                                         const float* logits, float max, int32_t token,
                                         const Scratch& scratch, SampledRow* out) {
  Kept all = {logits, args.vocab, -INFINITY, kAllKeys, 0, WeightsOf(args, max, weight::kLog2E)};
  const uint64_t total = TotalOf(all, scratch);
  const uint64_t own = LikelihoodKey(logits[token], static_cast<uint32_t>(token));
  uint64_t before = 0;
  ForEachLogit(logits, 0, args.vocab,
               [&](uint32_t i, float logit) { before += LikelihoodKey(logit, i) < own ? 1 : 0; });
  before = BlockFold(before, Sum(), scratch.warps);
  const uint32_t num_top = row.num_top < args.vocab ? row.num_top : args.vocab;
  if (num_top > 0) {
    all.bound = BoundOfTop(logits, args.vocab, max, num_top, scratch);
    const uint32_t listed = List(all, INFINITY, scratch);
    if (listed >= num_top && listed <= kMaxListed) {
      SortList(listed, scratch);
      if (threadIdx.x < num_top) out->top[threadIdx.x] = scratch.keys[threadIdx.x];
    } else {
      DescribeMany(&all, num_top, scratch, out);
    }
  }
  if (threadIdx.x != 0) return;
  out->max = max;
  out->logit = logits[token];
  out->rank = static_cast<uint32_t>(before) + 1;
  out->num_top = num_top;
  out->total = total;
}

// ---- Kernels ------------------------------------------------------------------------------------

// The logits of row blockIdx.x that it is drawn from.
__device__ __forceinline__ const float* LogitsOf(const SampleArgs& args, const SampleRow& row,
                                                 bool adjusted) {
  return (adjusted ? args.adjusted : args.logits) + static_cast<size_t>(row.row) * args.vocab;
}

// Block (x, y): chunk y of row x.
__global__ void __launch_bounds__(kThreads) TopOfChunksKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  const SampleRow row = args.rows[blockIdx.x];
  const Tiles tiles = TilesOf(args, blockIdx.y);
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
  const uint32_t tiles = (args.vocab + kTile - 1) / kTile;
  SumTiles(KeptOf(args, row, logits, logits[top]), TilesOf(args, blockIdx.y),
           args.sums + static_cast<size_t>(blockIdx.x) * tiles);
}

// searches: of rows that search, otherwise of the others.
template <bool searches>
__device__ __forceinline__ void SampleOne(const SampleArgs& args, const Scratch& scratch) {
  const SampleRow row = args.rows[blockIdx.x];
  if (row.searches != searches) return;
  SampledRow* const out = args.out + blockIdx.x;
  const float* const raw = LogitsOf(args, row, false);
  const float* const logits = LogitsOf(args, row, row.adjusted);
  bool bad = false;
  const uint32_t raw_top = Top(args, raw, false, &bad);
  const uint32_t top = bad || !row.adjusted ? raw_top : Top(args, logits, true, &bad);
  int32_t token = -1;
  if (!bad) {
    token = row.given < 0 ? static_cast<int32_t>(top) : row.given;
    if (row.drawn_from_all) {
      token = DrawFromAll(args, row, logits, logits[top], scratch);
    } else if (searches && row.given < 0 && !row.greedy) {
      token = DrawFromSome(args, row, logits, logits[top], scratch);
    }
    if (searches && row.num_top != kNoTop) {
      Describe(args, row, raw, raw[raw_top], token, scratch, out);
    }
  }
  if (threadIdx.x != 0) return;
  out->token = token;
  out->bad = bad ? 1 : 0;
}

__global__ void __launch_bounds__(kThreads) SampleRowsKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  FLOTILLA_SHARED(uint64_t, sums, kMaxTiles);
  FLOTILLA_SHARED(uint32_t, counts, 1);
  FLOTILLA_SHARED(uint64_t, found, 2);
  FLOTILLA_SHARED(uint64_t, list, 1);
  SampleOne<false>(args, {warps, sums, counts, found, list, list});
}

__global__ void __launch_bounds__(kThreads, 1) SearchRowsKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  FLOTILLA_SHARED(uint64_t, sums, kMaxTiles);
  FLOTILLA_SHARED(uint32_t, counts, kBins);
  FLOTILLA_SHARED(uint64_t, found, 2);
  FLOTILLA_SHARED(uint64_t, keys, kMaxListed);
  FLOTILLA_SHARED(uint64_t, weights, kMaxListed);
  SampleOne<true>(args, {warps, sums, counts, found, keys, weights});
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
  if (args.any_search) Launch(rows, SearchRowsKernel, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
