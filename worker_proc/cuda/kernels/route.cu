#include "worker_proc/cuda/kernels/route.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kRouterWarps = 4;   // an expert each
constexpr uint32_t kRouterTokens = 8;  // of a block, which reads its experts' weights once for them

// n: elements that a lane takes at once.
template <typename T, uint32_t n>
__global__ void __launch_bounds__(kRouterWarps* kWarp) RouterKernel(RouteArgs args) {
  StartNext();
  AfterPrevious();
  const uint32_t expert = blockIdx.x * kRouterWarps + threadIdx.x / kWarp;
  if (expert >= args.num_experts) return;  // a whole warp
  const uint32_t in = args.in_features;
  const uint32_t first = blockIdx.y * kRouterTokens;
  const uint32_t left = args.tokens - first;
  const uint32_t tokens = left < kRouterTokens ? left : kRouterTokens;
  const float* const weights = args.router + static_cast<size_t>(expert) * in;
  const T* const x = static_cast<const T*>(args.x) + static_cast<size_t>(first) * in;
  float sums[kRouterTokens] = {};
  for (uint32_t k = threadIdx.x % kWarp * n; k < in; k += kWarp * n) {
    float of_expert[n];
    LoadRun(weights + k, of_expert);
    FLOTILLA_UNROLL
    for (uint32_t t = 0; t < kRouterTokens; ++t) {
      if (t >= tokens) continue;
      float values[n];
      LoadRun(x + static_cast<size_t>(t) * in + k, values);
      for (uint32_t i = 0; i < n; ++i) sums[t] = fmaf(of_expert[i], values[i], sums[t]);
    }
  }
  FLOTILLA_UNROLL
  for (uint32_t t = 0; t < kRouterTokens; ++t) {
    if (t >= tokens) continue;
    const float sum = WarpSum(sums[t]);
    if (threadIdx.x % kWarp != 0) continue;
    args.logits[static_cast<size_t>(first + t) * args.num_experts + expert] = sum;
  }
}

// Rises with the logit; 0 is none's.
__device__ __forceinline__ uint32_t OrderOf(float logit) {
  if (logit != logit) return 1;
  const uint32_t bits = FloatBits(logit + 0.0f);  // -0 is 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ uint64_t WarpHighest(uint64_t value) {
  for (uint32_t lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

// Of values on the lanes before.
__device__ __forceinline__ uint32_t SumBefore(uint32_t value) {
  const uint32_t lane = threadIdx.x % kWarp;
  uint32_t sum = value;
  for (uint32_t lanes = 1; lanes < kWarp; lanes *= 2) {
    const uint32_t other = __shfl_sync(kAllLanes, sum, lane < lanes ? lane : lane - lanes);
    if (lane >= lanes) sum += other;
  }
  return sum - value;
}

// A token's experts and their weights, by a warp. orders: room for num_experts, of which each lane
// touches its own.
__device__ __forceinline__ void ChooseExperts(const RouteArgs& args, uint32_t token,
                                              SharedSpan<uint32_t> orders) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t num_experts = args.num_experts;
  const float* const logits = args.logits + static_cast<size_t>(token) * num_experts;
  uint32_t* const experts = args.experts + static_cast<size_t>(token) * args.top_k;
  float* const weights = args.weights + static_cast<size_t>(token) * args.top_k;
  float max = -INFINITY;
  for (uint32_t e = lane; e < num_experts; e += kWarp) {
    orders[e] = OrderOf(logits[e]);
    max = fmaxf(max, logits[e]);
  }
  max = WarpMax(max);
  for (uint32_t k = 0; k < args.top_k; ++k) {
    uint64_t best = 0;
    for (uint32_t e = lane; e < num_experts; e += kWarp) {
      const uint64_t candidate = static_cast<uint64_t>(orders[e]) << 32 | (kMostExperts - 1 - e);
      if (orders[e] != 0 && candidate > best) best = candidate;
    }
    const uint32_t expert = kMostExperts - 1 - static_cast<uint32_t>(WarpHighest(best));
    if (expert % kWarp == lane) orders[expert] = 0;  // is chosen
  }
  float sum = 0;
  uint32_t count = 0;
  for (uint32_t first = 0; first < num_experts; first += kWarp) {
    const uint32_t e = first + lane;
    const bool valid = e < num_experts;
    const bool chosen = valid && orders[e] == 0;
    const float exp = valid ? FastExp(logits[e] - max) : 0;
    if (chosen || !args.renormalize) sum += exp;
    const uint32_t all_chosen = __ballot_sync(kAllLanes, chosen);
    if (chosen) {
      const uint32_t at = count + CountBits(all_chosen & ((1u << lane) - 1));
      experts[at] = e;
      weights[at] = exp;
    }
    count += CountBits(all_chosen);
  }
  sum = WarpSum(sum);
  __syncwarp();
  for (uint32_t k = lane; k < args.top_k; k += kWarp) weights[k] /= sum;
}

// Of more tokens than a block should choose for.
constexpr uint32_t kChooseWarps = 4;
__global__ void __launch_bounds__(kChooseWarps* kWarp) ChooseKernel(RouteArgs args) {
  DynamicShared shared;
  const SharedSpan<uint32_t> orders = shared.Take<uint32_t>(kChooseWarps * args.num_experts);
  StartNext();
  AfterPrevious();
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t token = blockIdx.x * kChooseWarps + warp;
  if (token < args.tokens) ChooseExperts(args, token, orders + warp * args.num_experts);
}

// Where an expert's rows and tiles begin: by one warp.
__device__ __forceinline__ void FindBegins(const RouteArgs& args, SharedSpan<uint32_t> totals,
                                           SharedSpan<uint32_t> rows, SharedSpan<uint32_t> tiles) {
  uint32_t first_row = 0;
  uint32_t first_tile = 0;
  for (uint32_t first = 0; first < args.num_experts; first += kWarp) {
    const uint32_t e = first + threadIdx.x % kWarp;
    const uint32_t num_rows = e < args.num_experts ? totals[e] : 0;
    const uint32_t num_tiles = (num_rows + args.tile_rows - 1) / args.tile_rows;
    const uint32_t row = first_row + SumBefore(num_rows);
    const uint32_t tile = first_tile + SumBefore(num_tiles);
    if (e < args.num_experts) {
      rows[e] = row;
      tiles[e] = tile;
    }
    first_row = __shfl_sync(kAllLanes, row + num_rows, kWarp - 1);
    first_tile = __shfl_sync(kAllLanes, tile + num_tiles, kWarp - 1);
  }
  if (threadIdx.x % kWarp == 0) tiles[args.num_experts] = first_tile;
}

__device__ __forceinline__ void WriteTiles(const RouteArgs& args, SharedSpan<uint32_t> totals,
                                           SharedSpan<uint32_t> rows, SharedSpan<uint32_t> tiles) {
  for (uint32_t e = threadIdx.x; e < args.num_experts; e += blockDim.x) {
    ExpertTile* to = args.tiles + tiles[e];
    for (uint32_t row = 0; row < totals[e]; row += args.tile_rows) {
      const uint32_t left = totals[e] - row;
      *to++ = {e, rows[e] + row, left < args.tile_rows ? left : args.tile_rows};
    }
  }
  for (uint32_t i = tiles[args.num_experts] + threadIdx.x; i < args.num_tiles; i += blockDim.x) {
    args.tiles[i] = {0, 0, 0};
  }
}

// One block. Each warp counts and places the rows of a run of tokens, whose experts are all
// different, so lanes never meet.
template <bool chooses>
__global__ void __launch_bounds__(1024) SortKernel(RouteArgs args) {
  const uint32_t num_experts = args.num_experts;
  const uint32_t top_k = args.top_k;
  const uint32_t warps = blockDim.x / kWarp;
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  DynamicShared shared;
  const SharedSpan<uint32_t> counts = shared.Take<uint32_t>(warps * num_experts);
  const SharedSpan<uint32_t> totals = shared.Take<uint32_t>(num_experts);
  const SharedSpan<uint32_t> first_rows = shared.Take<uint32_t>(num_experts);
  const SharedSpan<uint32_t> first_tiles = shared.Take<uint32_t>(num_experts + 1);
  const SharedSpan<uint32_t> mine = counts + warp * num_experts;
  StartNext();
  AfterPrevious();
  if constexpr (chooses) {
    for (uint32_t t = warp; t < args.tokens; t += warps) ChooseExperts(args, t, mine);
    __syncthreads();
  }
  for (uint32_t e = lane; e < num_experts; e += kWarp) mine[e] = 0;
  __syncwarp();
  const uint32_t run = (args.tokens + warps - 1) / warps;
  const uint32_t begin = warp * run < args.tokens ? warp * run : args.tokens;
  const uint32_t end = begin + run < args.tokens ? begin + run : args.tokens;
  for (uint32_t i = begin * top_k + lane; i < end * top_k; i += kWarp) {
    atomicAdd(&mine[args.experts[i]], 1u);
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < num_experts; e += blockDim.x) {
    uint32_t total = 0;
    for (uint32_t w = 0; w < warps; ++w) {
      const uint32_t count = counts[w * num_experts + e];
      counts[w * num_experts + e] = total;  // the expert's rows before the warp's
      total += count;
    }
    totals[e] = total;
  }
  __syncthreads();
  if (warp == 0) FindBegins(args, totals, first_rows, first_tiles);
  __syncthreads();
  WriteTiles(args, totals, first_rows, first_tiles);
  for (uint32_t t = begin; t < end; ++t) {
    for (uint32_t k = lane; k < top_k; k += kWarp) {
      const uint32_t e = args.experts[t * top_k + k];
      const uint32_t row = first_rows[e] + mine[e];
      mine[e] += 1;
      args.row_tokens[row] = t;
      args.token_rows[t * top_k + k] = row;
    }
    __syncwarp();
  }
}

template <typename T>
void RunRouter(const RouteArgs& args, Stream stream) {
  Launch({.grid_x = CeilDiv(args.num_experts, kRouterWarps),
          .grid_y = CeilDiv(args.tokens, kRouterTokens),
          .block = kRouterWarps * kWarp},
         args.in_features % kRun == 0 ? RouterKernel<T, kRun> : RouterKernel<T, 1>, args, stream);
}

}  // namespace

void RouteTokens(const RouteArgs& args, Stream stream) {
  constexpr uint32_t kFewTokens = 32;  // for which one block chooses
  constexpr uint32_t kOrderBytes = sizeof(uint32_t);
  if (args.tokens == 0) return;
  ForElement(args.type, [&](auto element) { RunRouter<decltype(element)>(args, stream); });
  const bool few = args.tokens <= kFewTokens;
  if (!few) {
    Launch({.grid_x = CeilDiv(args.tokens, kChooseWarps),
            .block = kChooseWarps * kWarp,
            .shared_bytes = kChooseWarps * args.num_experts * kOrderBytes},
           ChooseKernel, args, stream);
  }
  // As many as have room for their counts.
  uint32_t warps = args.num_experts > kMostExperts / 2 ? 16 : 32;
  if (args.tokens < warps) warps = args.tokens < 4 ? 4 : args.tokens;
  Launch(
      {.block = warps * kWarp, .shared_bytes = ((warps + 3) * args.num_experts + 16) * kOrderBytes},
      few ? SortKernel<true> : SortKernel<false>, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
