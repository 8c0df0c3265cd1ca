// Paged attention by the tensor cores (paged_attention.h): heads of 64, 128 or 256 dimensions over
// a cache of 16 bits. Queries and the weights of keys are rounded to the cache's type, sums are
// float.
//
// Keys are walked in tiles of kTile, which the block copies to shared memory while it computes with
// tiles before. Two ways, kernels of their own, with the same operations in the same order for each
// row:
//   wide    up to 64 rows, 16 a warp, each warp with all keys of a tile and all columns of V
//   narrow  up to 16 rows, which all four warps have: each scores its share of a tile's keys, and
//           sums its share of V's columns over all of them
// So a row has the same bits in a prompt's chunk and as a decode. The sum of a row's weights is one
// more column of the product: the weights times ones.
//
// Source: "FlashAttention-2", arXiv 2307.08691; the PTX ISA for the layouts of mma and ldmatrix;
// ours.
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/mma_tiles.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kStages = 2;  // tiles in memory: more blocks instead of more of them

// ---- A tile -------------------------------------------------------------------------------------

template <typename Kv, uint32_t dim>
struct Wide {
  static constexpr uint32_t kItemRows = kWideItemRows;
  static constexpr uint32_t kPSize = 0;
  static constexpr uint32_t kMaxima = 0;
  static constexpr uint32_t kColumnTiles = dim / 8;
  __device__ static bool Has(uint32_t rows) { return rows > kNarrowItemRows; }
  __device__ static uint32_t FirstRow() { return threadIdx.x / kWarp * kRows; }
  __device__ static uint32_t FirstColumn() { return 0; }

  __device__ static void Walk(const AttentionArgs& args, uint32_t first_key,
                              const KeyRange (&seen)[kLaneRows], uint32_t stage,
                              const Tiles<Kv>& tiles, State<kColumnTiles>* state) {
    // Those before and behind all keys of all rows change nothing.
    const bool any = (first_key < seen[0].end && first_key + kTile<dim> > seen[0].begin) ||
                     (first_key < seen[1].end && first_key + kTile<dim> > seen[1].begin);
    if (__ballot_sync(kAllLanes, any) == 0) return;
    float scores[kTile<dim> / 8][4] = {};
    Score<Kv, dim>(tiles.q + FirstRow() * kStride<dim>, tiles.k + stage * kTileSize<dim>, scores);
    float max[kLaneRows];
    MaskScores(args, first_key, seen, scores, max);
    RaiseMax(max, state);
    Weigh(state->max, scores);
    for (uint32_t j = 0; j < kTile<dim> / 8; j += 2) {
      const uint32_t a[4] = {PairBits<Kv>(scores[j][0], scores[j][1]),
                             PairBits<Kv>(scores[j][2], scores[j][3]),
                             PairBits<Kv>(scores[j + 1][0], scores[j + 1][1]),
                             PairBits<Kv>(scores[j + 1][2], scores[j + 1][3])};
      AddValues<Kv, dim>(a, tiles.v + stage * kTileSize<dim> + j * 8 * kStride<dim>, state);
    }
  }
};

template <typename Kv, uint32_t dim>
struct Narrow {
  static constexpr uint32_t kItemRows = kNarrowItemRows;
  static constexpr uint32_t kPSize = kRows * (kTile<dim> + kPad);
  static constexpr uint32_t kMaxima = kWarps * kRows;
  static constexpr uint32_t kColumnTiles = dim / 8 / kWarps;
  __device__ static bool Has(uint32_t rows) { return rows <= kNarrowItemRows; }
  static constexpr uint32_t kScoringWarps = kTile<dim> / 16;
  __device__ static uint32_t FirstRow() { return 0; }
  __device__ static uint32_t FirstColumn() { return threadIdx.x / kWarp * (dim / kWarps); }

  __device__ static void Walk(const AttentionArgs& args, uint32_t first_key,
                              const KeyRange (&seen)[kLaneRows], uint32_t stage,
                              const Tiles<Kv>& tiles, State<kColumnTiles>* state) {
    constexpr uint32_t kPStride = kTile<dim> + kPad;
    const uint32_t warp = threadIdx.x / kWarp;
    const uint32_t row = threadIdx.x % kWarp / 4;
    float scores[2][4] = {};
    if (warp < kScoringWarps) {
      const uint32_t key = warp * 16;
      Score<Kv, dim>(tiles.q, tiles.k + stage * kTileSize<dim> + key * kStride<dim>, scores);
      float max[kLaneRows];
      MaskScores(args, first_key + key, seen, scores, max);
      if (threadIdx.x % 4 == 0) {
        tiles.maxima[warp * kRows + row] = max[0];
        tiles.maxima[warp * kRows + row + 8] = max[1];
      }
    }
    __syncthreads();
    float max[kLaneRows] = {-INFINITY, -INFINITY};
    for (uint32_t w = 0; w < kScoringWarps; ++w) {
      max[0] = fmaxf(max[0], tiles.maxima[w * kRows + row]);
      max[1] = fmaxf(max[1], tiles.maxima[w * kRows + row + 8]);
    }
    RaiseMax(max, state);
    if (warp < kScoringWarps) {
      Weigh(state->max, scores);
      for (uint32_t j = 0; j < 2; ++j) {
        for (uint32_t i = 0; i < kLaneRows; ++i) {
          const uint32_t key = warp * 16 + j * 8 + threadIdx.x % 4 * 2;
          for (uint32_t e = 0; e < 2; ++e) {
            tiles.p[(row + 8 * i) * kPStride + key + e] = FromFloat<Kv>(scores[j][2 * i + e]);
          }
        }
      }
    }
    __syncthreads();
    for (uint32_t key = 0; key < kTile<dim>; key += 16) {
      uint32_t a[4];
      LoadMatrix(tiles.p + key, kPStride, a);
      AddValues<Kv, dim>(a, tiles.v + stage * kTileSize<dim> + key * kStride<dim> + FirstColumn(),
                         state);
    }
  }
};

// ---- An item ------------------------------------------------------------------------------------

template <typename Way, uint32_t n>
__device__ __forceinline__ void WriteSplit(const AttentionArgs& args, const AttentionItem& item,
                                           uint32_t split, const State<n>& part) {
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    const uint32_t r = Way::FirstRow() + threadIdx.x % kWarp / 4 + 8 * i;
    const uint32_t rows = item.row_end - item.row_begin;
    if (r >= rows) continue;
    const size_t at =
        PartOf(args, item.part_row + (split - item.split_begin) * rows + r, KvHeadOf(args));
    if (threadIdx.x % 4 == 0 && Way::FirstColumn() == 0) {
      args.part_max[at] = part.max[i];
      args.part_sum[at] = part.sum[2 * i];
    }
    const uint32_t column = Way::FirstColumn() + threadIdx.x % 4 * 2;
    float* const to = args.part_out + at * args.kv.v_dim + column;
    for (uint32_t j = 0; j < n; ++j) {
      *reinterpret_cast<Pair<float>*>(to + j * 8) = {part.out[j][2 * i], part.out[j][2 * i + 1]};
    }
  }
}

template <typename Way, typename Out, uint32_t n>
__device__ __forceinline__ void WriteRows(const AttentionArgs& args, const AttentionItem& item,
                                          const State<n>& total) {
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    const uint32_t row = item.row_begin + Way::FirstRow() + threadIdx.x % kWarp / 4 + 8 * i;
    if (row >= item.row_end) continue;
    const RowPlace place = PlaceOf(args, item, row, KvHeadOf(args));
    const size_t begin =
        (static_cast<size_t>(place.token) * args.num_heads + place.head) * args.kv.v_dim;
    Out* const to = static_cast<Out*>(args.out) + begin + Way::FirstColumn() + threadIdx.x % 4 * 2;
    const float sum = total.sum[2 * i];
    for (uint32_t j = 0; j < n; ++j) {
      *reinterpret_cast<Pair<Out>*>(to + j * 8) = {FromFloat<Out>(total.out[j][2 * i] / sum),
                                                   FromFloat<Out>(total.out[j][2 * i + 1] / sum)};
    }
  }
}

template <typename Way, typename Kv, typename Out, uint32_t dim, bool rotates>
__device__ __forceinline__ void WalkItem(const AttentionArgs& args, const AttentionItem& item,
                                         const Tiles<Kv>& tiles) {
  constexpr uint32_t kTilesASplit = kSplitKeys / kTile<dim>;
  const KeyRange keys = KeysOfItem(args, item);
  KeyRange seen[kLaneRows];
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    const uint32_t row = item.row_begin + Way::FirstRow() + threadIdx.x % kWarp / 4 + 8 * i;
    seen[i] = row < item.row_end ? KeysOfRow(args, item, row) : KeyRange{0, 0};
  }
  State<Way::kColumnTiles> total;
  State<Way::kColumnTiles> part;
  const uint32_t first_tile = keys.begin / kTile<dim>;
  const uint32_t end_tile = (keys.end + kTile<dim> - 1) / kTile<dim>;
  TileKeys<Kv, dim> next(args, item, keys);
  uint32_t next_tile = first_tile;
  const auto fetch_next = [&] {
    next.Fetch(next_tile % kStages, tiles);
    next.Find(++next_tile * kTile<dim>);
  };
  next.Find(first_tile * kTile<dim>);
  // Keys of steps before this one are there already; this step's the kernel before writes, or the
  // block itself, over what the cache has in its place.
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    const bool there = rotates || (next_tile + 1) * kTile<dim> <= item.keys_before;
    if (next_tile < end_tile && there) fetch_next();
  }
  const bool has_own_key = rotates && keys.end > item.keys_before;
  if constexpr (rotates) {
    CopyCommit();
    RotateOwn<Kv, dim>(args, item, has_own_key, tiles);
  } else {
    AfterPrevious();
    if (next_tile == first_tile) fetch_next();
    CopyCommit();
    LoadQueries<Kv, dim>(args, item, Way::kItemRows, tiles);
  }
  for (uint32_t tile = first_tile; tile < end_tile; ++tile) {
    CopyWait<0>();
    __syncthreads();  // the tile is there, and nobody computes with the one before any more
    if (has_own_key && tile + 1 == end_tile) {
      PutOwn<Kv, dim>(item, tile % kStages, tiles);
      __syncthreads();
    }
    if (next_tile < end_tile && next_tile == tile + 1) fetch_next();
    CopyCommit();
    Way::Walk(args, tile * kTile<dim>, seen, tile % kStages, tiles, &part);
    if ((tile + 1) % kTilesASplit != 0 && tile + 1 < end_tile) continue;
    if (item.part_row == kNoPart) {
      MergeState(part, &total);
    } else {
      WriteSplit<Way>(args, item, tile / kTilesASplit, part);
    }
    part = State<Way::kColumnTiles>();
  }
  if (item.part_row == kNoPart) {
    WriteRows<Way, Out>(args, item, total);
  } else {
    FinishShare<Out, dim / kWarp>(args, item, tiles.is_last);
  }
}

// Items of the other way are the other kernel's.
template <typename Way, typename Kv, typename Out, uint32_t dim, bool rotates>
__global__ void __launch_bounds__(kThreads) MmaAttentionKernel(AttentionArgs args) {
  StartNext();
  // Items and page tables are there since before the step's first kernel.
  const AttentionItem item = args.items[ItemOf(args)];
  if (item.row_begin == item.row_end || !Way::Has(item.row_end - item.row_begin)) {
    return TouchNothing();
  }
  DynamicShared shared;
  const Tiles<Kv> tiles = {shared.Take<Kv>(Way::kItemRows * kStride<dim> - kPad),
                           shared.Take<Kv>(kStages * kTileSize<dim>),
                           shared.Take<Kv>(kStages * kTileSize<dim>),
                           shared.Take<Kv>(Way::kPSize),
                           shared.Take<float>(Way::kMaxima),
                           shared.Take<uint32_t>(1),
                           shared.Take<Kv>(rotates ? 2 * dim : 0)};
  WalkItem<Way, Kv, Out, dim, rotates>(args, item, tiles);
}

template <template <typename, uint32_t> class Way, typename Kv, typename Out, uint32_t dim,
          bool rotates = false>
void RunWay(const AttentionArgs& args, Stream stream) {
  using W = Way<Kv, dim>;
  constexpr uint32_t kHalves =
      W::kItemRows * kStride<dim> - kPad + 2 * kStages * kTileSize<dim> + W::kPSize;
  constexpr uint32_t kOwn = rotates ? 2 * dim : 0;
  constexpr uint32_t kBytes = (kHalves + kOwn) * 2 + W::kMaxima * sizeof(float) + 16;
  static_assert(kBytes <= kMostSharedBytes);
  Launch(
      {.grid_x = args.num_items * args.kv.num_kv_heads, .block = kThreads, .shared_bytes = kBytes},
      MmaAttentionKernel<W, Kv, Out, dim, rotates>, args, stream);
}

template <typename Kv, typename Out, uint32_t dim>
void Run(const AttentionArgs& args, Stream stream) {
  if constexpr (std::is_same_v<Kv, Out>) {
    if (args.rotates) return RunWay<Narrow, Kv, Out, dim, true>(args, stream);
  }
  if (args.wide_items) RunWay<Wide, Kv, Out, dim>(args, stream);
  if (args.narrow_items) RunWay<Narrow, Kv, Out, dim>(args, stream);
}

template <typename Kv, typename Out>
void RunDim(const AttentionArgs& args, Stream stream) {
  switch (args.kv.v_dim) {
    case 64:
      return Run<Kv, Out, 64>(args, stream);
    case 128:
      return Run<Kv, Out, 128>(args, stream);
    default:
      return Run<Kv, Out, 256>(args, stream);
  }
}

}  // namespace

void MmaAttention(const AttentionArgs& args, Stream stream) {
  ForElement(args.out_type, [&](auto out) {
    using Out = decltype(out);
    if (args.kv.type == Element::kFloat16) {
      RunDim<Half, Out>(args, stream);
    } else {
      RunDim<BFloat16, Out>(args, stream);
    }
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
