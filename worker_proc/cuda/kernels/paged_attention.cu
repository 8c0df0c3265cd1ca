#include "worker_proc/cuda/kernels/paged_attention.h"

#include "worker_proc/cuda/kernels/attention_rows.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * kWarp;
constexpr uint32_t kRowsAWarp = kItemRows / kWarps;
constexpr uint32_t kNoKey = UINT32_MAX;
constexpr uint32_t kTileKeys = 32;
static_assert(kTileKeys == kWarp, "a lane scores one key");
static_assert(kSplitKeys % kTileKeys == 0);

// Elements that a key's row takes in shared memory: an odd number of packs, so that lanes that read
// different keys meet in no bank.
template <typename Kv>
__device__ __forceinline__ uint32_t Padded(uint32_t dim) {
  return ((dim + Pack<Kv>::kSize - 1) / Pack<Kv>::kSize | 1) * Pack<Kv>::kSize;
}
// The same for those who launch.
template <typename Kv>
uint32_t SharedBytes(const KvPages& kv) {
  constexpr uint32_t kPack = Pack<Kv>::kSize;
  const uint32_t qk = (CeilDiv(kv.qk_dim, kPack) | 1) * kPack;
  const uint32_t v = (CeilDiv(kv.v_dim, kPack) | 1) * kPack;
  const auto rounded = [](size_t bytes) { return static_cast<uint32_t>((bytes + 15) / 16 * 16); };
  return rounded(kItemRows * qk * sizeof(float)) + rounded(kTileKeys * qk * sizeof(Kv)) +
         rounded(kTileKeys * v * sizeof(Kv)) + rounded(kItemRows * kTileKeys * sizeof(float)) +
         rounded(kTileKeys * sizeof(uint32_t));
}

// What the block keeps in shared memory.
template <typename Kv>
struct Tiles {
  SharedSpan<float> q;              // [kItemRows][Padded(qk_dim)], scaled; zeros behind each row
  SharedSpan<Kv> k;                 // [kTileKeys][Padded(qk_dim)]; zeros behind each row
  SharedSpan<Kv> v;                 // [kTileKeys][Padded(v_dim)]
  SharedSpan<float> p;              // [kItemRows][kTileKeys]
  SharedSpan<uint32_t> cache_rows;  // [kTileKeys]: page * page_size + offset, or kNoKey
};

template <typename Kv>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& args, const AttentionItem& item,
                                            const Tiles<Kv>& tiles) {
  const uint32_t stride = Padded<Kv>(args.kv.qk_dim);
  for (uint32_t i = threadIdx.x; i < kItemRows * stride; i += kThreads) {
    const uint32_t row = item.row_begin + i / stride;
    const uint32_t d = i % stride;
    float q = 0;
    if (row < item.row_end && d < args.kv.qk_dim) {
      const RowPlace place = PlaceOf(args, item, row, KvHeadOf(args));
      q = args.q[static_cast<size_t>(place.token) * args.q_stride + place.head * args.kv.qk_dim +
                 d];
    }
    tiles.q[i] = q * args.scale;
  }
}

// A tile's rows of K or V, zeros for keys that nobody sees.
template <typename Kv>
__device__ __forceinline__ void LoadRows(const AttentionArgs& args, const Kv* pages, uint32_t dim,
                                         const Tiles<Kv>& tiles, SharedSpan<Kv> to) {
  constexpr uint32_t kPack = Pack<Kv>::kSize;
  const uint32_t stride = Padded<Kv>(dim);
  const uint32_t page_size = args.kv.page_size;
  for (uint32_t i = threadIdx.x; i < kTileKeys * (stride / kPack); i += kThreads) {
    const uint32_t key = i / (stride / kPack);
    const uint32_t d = i % (stride / kPack) * kPack;
    const uint32_t cache_row = tiles.cache_rows[key];
    Pack<Kv> pack = {};
    if (cache_row != kNoKey && d < dim) {
      const size_t head =
          static_cast<size_t>(cache_row / page_size) * args.kv.num_kv_heads + KvHeadOf(args);
      const Kv* const from = pages + (head * page_size + cache_row % page_size) * dim + d;
      if (dim % kPack == 0) {
        pack = Load16(from);
      } else {
        for (uint32_t j = 0; j < kPack && d + j < dim; ++j) pack.v[j] = from[j];
      }
    }
    Store16(&to[key * stride + d], pack);
  }
}

template <typename Kv>
__device__ __forceinline__ void LoadTile(const AttentionArgs& args, uint32_t first_page,
                                         uint32_t first_key, const KeyRange& keys,
                                         const Tiles<Kv>& tiles) {
  if (threadIdx.x < kTileKeys) {
    const uint32_t key = first_key + threadIdx.x;
    const uint32_t page_size = args.kv.page_size;
    uint32_t cache_row = kNoKey;
    if (key >= keys.begin && key < keys.end) {
      cache_row = args.page_indices[first_page + key / page_size] * page_size + key % page_size;
    }
    tiles.cache_rows[threadIdx.x] = cache_row;
  }
  __syncthreads();
  LoadRows(args, static_cast<const Kv*>(args.kv.k), args.kv.qk_dim, tiles, tiles.k);
  LoadRows(args, static_cast<const Kv*>(args.kv.v), args.kv.v_dim, tiles, tiles.v);
  __syncthreads();
}

// This lane's key against row r of the block.
template <typename Kv>
__device__ __forceinline__ float Score(const AttentionArgs& args, const Tiles<Kv>& tiles,
                                       uint32_t r) {
  constexpr uint32_t kPack = Pack<Kv>::kSize;
  const uint32_t stride = Padded<Kv>(args.kv.qk_dim);
  const uint32_t lane = threadIdx.x % kWarp;
  float score = 0;
  for (uint32_t d = 0; d < args.kv.qk_dim; d += kPack) {
    const Pack<Kv> k = Load16(&tiles.k[lane * stride + d]);
    for (uint32_t j = 0; j < kPack; ++j) {
      score = fmaf(tiles.q[r * stride + d + j], ToFloat(k.v[j]), score);
    }
  }
  return args.softcap > 0 ? args.softcap * FastTanh(score / args.softcap) : score;
}

// A tile's keys into row r of the block, which sees `keys`.
template <typename Kv, uint32_t kDims>
__device__ __forceinline__ void WalkTile(const AttentionArgs& args, const Tiles<Kv>& tiles,
                                         uint32_t r, bool sees, AttentionRow<kDims>* row) {
  const uint32_t lane = threadIdx.x % kWarp;
  const float score = sees ? Score(args, tiles, r) : -INFINITY;
  const float tile_max = WarpMax(score);
  if (tile_max == -INFINITY) return;  // on all lanes alike
  const float max = fmaxf(row->max, tile_max);
  const float p = FastExp(score - max);
  const float before = FastExp(row->max - max);
  row->max = max;
  row->sum = fmaf(row->sum, before, p);  // of this lane's keys, until the split ends
  tiles.p[r * kTileKeys + lane] = p;
  __syncwarp();
  for (uint32_t i = 0; i < kDims; ++i) row->out[i] *= before;
  const uint32_t stride = Padded<Kv>(args.kv.v_dim);
  for (uint32_t key = 0; key < kTileKeys; ++key) {
    const float weight = tiles.p[r * kTileKeys + key];
    if (weight == 0) continue;  // a key the row does not see may hold infinity
    for (uint32_t i = 0; i < kDims; ++i) {
      const uint32_t d = i * kWarp + lane;
      if (d < args.kv.v_dim) {
        row->out[i] = fmaf(weight, ToFloat(tiles.v[key * stride + d]), row->out[i]);
      }
    }
  }
  __syncwarp();
}

// One split's keys into the warp's rows.
template <typename Kv, uint32_t kDims>
__device__ __forceinline__ void WalkSplit(const AttentionArgs& args, const AttentionItem& item,
                                          const KeyRange& keys, const Tiles<Kv>& tiles,
                                          AttentionRow<kDims> (&rows)[kRowsAWarp]) {
  const uint32_t first_row = item.row_begin + threadIdx.x / kWarp * kRowsAWarp;
  for (uint32_t first_key = keys.begin / kTileKeys * kTileKeys; first_key < keys.end;
       first_key += kTileKeys) {
    LoadTile(args, item.first_page, first_key, keys, tiles);
    const uint32_t key = first_key + threadIdx.x % kWarp;
    for (uint32_t i = 0; i < kRowsAWarp; ++i) {
      if (first_row + i >= item.row_end) continue;
      const KeyRange seen = KeysOfRow(args, item, first_row + i);
      const bool sees = key >= seen.begin && key < seen.end;
      WalkTile(args, tiles, first_row + i - item.row_begin, sees, &rows[i]);
    }
    __syncthreads();
  }
  for (AttentionRow<kDims>& row : rows) row.sum = WarpSum(row.sum);
}

template <uint32_t kDims>
__device__ __forceinline__ void WritePart(const AttentionArgs& args, size_t part,
                                          const AttentionRow<kDims>& row) {
  const uint32_t lane = threadIdx.x % kWarp;
  if (lane == 0) {
    args.part_max[part] = row.max;
    args.part_sum[part] = row.sum;
  }
  for (uint32_t i = 0; i < kDims; ++i) {
    const uint32_t d = i * kWarp + lane;
    if (d < args.kv.v_dim) args.part_out[part * args.kv.v_dim + d] = row.out[i];
  }
}

template <typename Kv, typename Out, uint32_t kDims>
__global__ void __launch_bounds__(kThreads) PagedAttentionKernel(AttentionArgs args) {
  StartNext();
  AfterPrevious();
  const AttentionItem item = args.items[ItemOf(args)];
  if (item.row_begin == item.row_end) return;
  DynamicShared shared;
  const uint32_t stride = Padded<Kv>(args.kv.qk_dim);
  const Tiles<Kv> tiles = {
      shared.Take<float>(kItemRows * stride), shared.Take<Kv>(kTileKeys * stride),
      shared.Take<Kv>(kTileKeys * Padded<Kv>(args.kv.v_dim)),
      shared.Take<float>(kItemRows * kTileKeys), shared.Take<uint32_t>(kTileKeys)};
  LoadQueries(args, item, tiles);
  const KeyRange item_keys = KeysOfItem(args, item);
  const uint32_t rows = item.row_end - item.row_begin;
  const uint32_t first_row = item.row_begin + threadIdx.x / kWarp * kRowsAWarp;
  AttentionRow<kDims> total[kRowsAWarp];
  for (uint32_t split = item.split_begin; split < item.split_end; ++split) {
    const uint32_t begin = split * kSplitKeys;
    const KeyRange keys = {begin > item_keys.begin ? begin : item_keys.begin,
                           begin + kSplitKeys < item_keys.end ? begin + kSplitKeys : item_keys.end};
    AttentionRow<kDims> part[kRowsAWarp];
    WalkSplit(args, item, keys, tiles, part);
    for (uint32_t i = 0; i < kRowsAWarp; ++i) {
      if (item.part_row == kNoPart) {
        Merge(part[i], &total[i]);
      } else if (first_row + i < item.row_end) {
        const uint32_t row = (split - item.split_begin) * rows + (first_row + i - item.row_begin);
        WritePart(args, PartOf(args, item.part_row + row, KvHeadOf(args)), part[i]);
      }
    }
  }
  if (item.part_row != kNoPart) return FinishShare<Out, kDims>(args, item, tiles.cache_rows);
  for (uint32_t i = 0; i < kRowsAWarp; ++i) {
    if (first_row + i >= item.row_end) continue;
    WriteOut<Out>(args, PlaceOf(args, item, first_row + i, KvHeadOf(args)), total[i]);
  }
}

}  // namespace

void PagedAttention(const AttentionArgs& args, Stream stream) {
  if (args.num_items == 0) return;
  if (HasMmaKernel(args.kv)) return MmaAttention(args, stream);
  ForElement(args.kv.type, [&](auto kv) {
    ForElement(args.out_type, [&](auto out) {
      ForDims(args.kv.v_dim, [&](auto dims) {
        using Kv = decltype(kv);
        Launch({.grid_x = args.num_items * args.kv.num_kv_heads,
                .block = kThreads,
                .shared_bytes = SharedBytes<Kv>(args.kv)},
               PagedAttentionKernel<Kv, decltype(out), decltype(dims)::value>, args, stream);
      });
    });
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
