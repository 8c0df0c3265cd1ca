// Rows that need the most likely tokens (sample.h): what top-k and top-p leave, and logprobs.
// Compiled without contraction, as sample.cu.
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/sample_row.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kMargins = 10;
constexpr uint32_t kReaches = 8;

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

// ---- The list -----------------------------------------------------------------------------------
// What top-k, top-p and the most likely tokens are taken from, if it is short enough.

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

// As Sampler::Draw of a temperature above 0, with top-k or top-p.
__device__ __forceinline__ int32_t DrawFromSome(const SampleArgs& args, const SampleRow& row,
                                                const float* logits, float max,
                                                const Scratch& scratch) {
  const uint32_t tiles = NumTiles(args.vocab);
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
  SumTiles(kept, TileRange{0, tiles}, scratch.sums);
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

__global__ void __launch_bounds__(kThreads, 1) SearchRowsKernel(SampleArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint64_t, warps, kWarps);
  FLOTILLA_SHARED(uint64_t, sums, kMaxTiles);
  FLOTILLA_SHARED(uint32_t, counts, kBins);
  FLOTILLA_SHARED(uint64_t, found, 2);
  FLOTILLA_SHARED(uint64_t, keys, kMaxListed);
  FLOTILLA_SHARED(uint64_t, weights, kMaxListed);
  const Scratch scratch = {warps, sums, counts, found, keys, weights};
  const RowView view = ViewRow(args);
  const SampleRow& row = view.row;
  if (!row.searches) return;
  int32_t token = row.given < 0 ? static_cast<int32_t>(view.top) : row.given;
  if (!view.bad) {
    const float max = view.logits[view.top];
    if (row.drawn_from_all) {
      token = DrawFromAll(args, row, view.logits, max, scratch);
    } else if (row.given < 0 && !row.greedy) {
      token = DrawFromSome(args, row, view.logits, max, scratch);
    }
    if (row.num_top != kNoTop) {
      Describe(args, row, view.raw, view.raw[view.raw_top], token, scratch, args.out + blockIdx.x);
    }
  }
  WriteToken(args, token, view.bad);
}

}  // namespace

void SearchRows(const SampleArgs& args, Stream stream) {
  Launch({.grid_x = args.num_rows, .block = kThreads}, SearchRowsKernel, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
