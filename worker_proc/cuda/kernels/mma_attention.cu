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
#include "worker_proc/cuda/kernels/attention_rows.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * kWarp;
constexpr uint32_t kRows = kNarrowItemRows;  // of a product of the tensor cores
static_assert(kRows == 16 && kWarps * kRows == kWideItemRows);

// Elements of 16 bits: with them behind each row, eight rows begin in different banks.
constexpr uint32_t kPad = 8;

template <uint32_t dim>
constexpr uint32_t kTile = dim > 128 ? 32 : 64;  // keys
template <uint32_t dim>
constexpr uint32_t kStride = dim + kPad;
template <uint32_t dim>
constexpr uint32_t kTileSize = kTile<dim>* kStride<dim>;  // elements

// What the block keeps in shared memory.
template <typename Kv>
struct Tiles {
  SharedSpan<Kv> q;          // [kItemRows][kStride]
  SharedSpan<Kv> k;          // [kStages][kTile][kStride]
  SharedSpan<Kv> v;          // the same
  SharedSpan<Kv> p;          // [kRows][kTile + kPad]: narrow
  SharedSpan<float> maxima;  // [kWarps][kRows]: narrow
  SharedSpan<uint32_t> is_last;
};

// A lane's rows: l / 4 and l / 4 + 8 of the 16 that its warp has.
constexpr uint32_t kLaneRows = 2;

// The softmax of the lane's rows while keys are walked: as AttentionRow. n: tiles of 8 columns of
// V.
template <uint32_t n>
struct State {
  float max[kLaneRows] = {-INFINITY, -INFINITY};
  float sum[4] = {};  // of all keys: [0] and [2] are the two rows'
  float out[n][4] = {};
};

template <uint32_t n>
__device__ __forceinline__ void MergeState(const State<n>& other, State<n>* state) {
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    if (other.max[i] == -INFINITY) continue;
    const float max = fmaxf(state->max[i], other.max[i]);
    const float before = FastExp(state->max[i] - max);
    const float after = FastExp(other.max[i] - max);
    state->max[i] = max;
    state->sum[2 * i] = fmaf(other.sum[2 * i], after, state->sum[2 * i] * before);
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t e = 2 * i; e < 2 * i + 2; ++e) {
        state->out[j][e] = fmaf(other.out[j][e], after, state->out[j][e] * before);
      }
    }
  }
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T v[2];
};

template <typename Kv>
__device__ __forceinline__ uint32_t PairBits(float first, float second) {
  return FromFloat<Kv>(first).bits | static_cast<uint32_t>(FromFloat<Kv>(second).bits) << 16;
}

// The rows of the item, as the cache's type; rows that it does not have are zeros.
template <typename Kv, uint32_t dim>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& args, const AttentionItem& item,
                                            uint32_t rows, const Tiles<Kv>& tiles) {
  constexpr uint32_t kPacks = dim / Pack<Kv>::kSize;
  for (uint32_t i = threadIdx.x; i < rows * kPacks; i += kThreads) {
    const uint32_t row = i / kPacks;
    const uint32_t d = i % kPacks * Pack<Kv>::kSize;
    float values[Pack<Kv>::kSize] = {};
    if (item.row_begin + row < item.row_end) {
      const RowPlace place = PlaceOf(args, item, item.row_begin + row, blockIdx.y);
      LoadRun(args.q + static_cast<size_t>(place.token) * args.q_stride + place.head * dim + d,
              values);
    }
    StoreRun(&tiles.q[row * kStride<dim> + d], values);
  }
}

// n / page_size for keys, without a division.
class PageOf {
 public:
  __device__ explicit PageOf(uint32_t page_size)
      : page_size_(page_size), inverse_(UINT32_MAX / page_size + 1) {}
  // key: below 2^32 / page_size.
  __device__ uint32_t operator()(uint32_t key) const {
    const auto page = static_cast<uint32_t>(static_cast<uint64_t>(key) * inverse_ >> 32);
    return page_size_ == 1 ? key : page;
  }

 private:
  const uint32_t page_size_;
  const uint32_t inverse_;  // 2^32 / page_size, rounded up
};

// A thread copies one pack of each of these keys of a tile, kKeyStep apart. Their pages are looked
// up a tile before, so that nobody waits for them.
template <typename Kv, uint32_t dim>
class TileKeys {
 public:
  __device__ TileKeys(const AttentionArgs& args, const AttentionItem& item, const KeyRange& keys)
      : args_(args),
        keys_(keys),
        page_table_(args.page_indices + item.first_page),
        page_of_(args.kv.page_size) {}

  __device__ void Find(uint32_t first_key) {
    first_key_ = first_key;
    // All at once: keys that are not the item's have the page of one that is.
    for (uint32_t i = 0; i < kKeys; ++i) pages_[i] = page_table_[page_of_(Near(i))];
  }

  // Begins to copy them: zeros for those that are not the item's.
  __device__ void Fetch(uint32_t stage, const Tiles<Kv>& tiles) const {
    const uint32_t page_size = args_.kv.page_size;
    const uint32_t d = threadIdx.x % kPacks * Pack<Kv>::kSize;
    for (uint32_t i = 0; i < kKeys; ++i) {
      const uint32_t key = Near(i);
      const uint32_t offset = key - page_of_(key) * page_size;
      const uint32_t row = (pages_[i] * args_.kv.num_kv_heads + blockIdx.y) * page_size + offset;
      const size_t from = static_cast<size_t>(row) * dim + d;
      const bool valid = key == Key(i);
      const uint32_t to =
          stage * kTileSize<dim> + (threadIdx.x / kPacks + i * kKeyStep) * kStride<dim> + d;
      CopyAsync16(&tiles.k[to], static_cast<const Kv*>(args_.kv.k) + from, valid);
      CopyAsync16(&tiles.v[to], static_cast<const Kv*>(args_.kv.v) + from, valid);
    }
  }

 private:
  static constexpr uint32_t kPacks = dim / Pack<Kv>::kSize;
  static constexpr uint32_t kKeyStep = kThreads / kPacks;
  static constexpr uint32_t kKeys = kTile<dim> / kKeyStep;

  __device__ uint32_t Key(uint32_t i) const {
    return first_key_ + threadIdx.x / kPacks + i * kKeyStep;
  }
  // The closest that is the item's.
  __device__ uint32_t Near(uint32_t i) const {
    const uint32_t key = Key(i) < keys_.begin ? keys_.begin : Key(i);
    return key < keys_.end ? key : keys_.end - 1;
  }

  const AttentionArgs& args_;
  const KeyRange keys_;
  const uint32_t* const page_table_;
  const PageOf page_of_;
  uint32_t first_key_ = 0;
  uint32_t pages_[kKeys];
};

// Scores of 16 rows of q against 16 keys each, from row `first` of the tile on.
template <typename Kv, uint32_t dim, uint32_t n>
__device__ __forceinline__ void Score(SharedSpan<Kv> q, SharedSpan<Kv> k, float (&scores)[n][4]) {
  for (uint32_t d = 0; d < dim; d += kRows) {
    uint32_t a[4];
    LoadMatrix(q + d, kStride<dim>, a);
    for (uint32_t j = 0; j < n; j += 2) {
      uint32_t b[4];
      LoadMatrix(k + j * 8 * kStride<dim> + d, kStride<dim>, b);
      Mma<Kv>(scores[j], a, b[0], b[2]);
      Mma<Kv>(scores[j + 1], a, b[1], b[3]);
    }
  }
}

// Scales and caps scores of keys from first_key on; -inf: the row does not see the key. max: of
// each row, on all its lanes.
template <uint32_t n>
__device__ __forceinline__ void MaskScores(const AttentionArgs& args, uint32_t first_key,
                                           const KeyRange (&seen)[kLaneRows], float (&scores)[n][4],
                                           float (&max)[kLaneRows]) {
  for (uint32_t j = 0; j < n; ++j) {
    for (uint32_t e = 0; e < 4; ++e) scores[j][e] *= args.scale;
  }
  if (args.softcap > 0) {
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t e = 0; e < 4; ++e) {
        scores[j][e] = args.softcap * FastTanh(scores[j][e] / args.softcap);
      }
    }
  }
  const uint32_t lane_key = first_key + threadIdx.x % 4 * 2;
  bool all = true;  // keys are seen by both rows
  for (const KeyRange& keys : seen) {
    all = all && first_key >= keys.begin && first_key + n * 8 <= keys.end;
  }
  if (!all) {
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t e = 0; e < 4; ++e) {
        const uint32_t key = lane_key + j * 8 + e % 2;
        const KeyRange& keys = seen[e / 2];
        scores[j][e] = key >= keys.begin && key < keys.end ? scores[j][e] : -INFINITY;
      }
    }
  }
  max[0] = max[1] = -INFINITY;
  for (uint32_t j = 0; j < n; ++j) {
    for (uint32_t e = 0; e < 4; ++e) max[e / 2] = fmaxf(max[e / 2], scores[j][e]);
  }
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    max[i] = fmaxf(max[i], __shfl_xor_sync(kAllLanes, max[i], 1));
    max[i] = fmaxf(max[i], __shfl_xor_sync(kAllLanes, max[i], 2));
  }
}

// Brings the state to the maximum of what it has seen and of a tile.
template <uint32_t n>
__device__ __forceinline__ void RaiseMax(const float (&tile_max)[kLaneRows], State<n>* state) {
  float factor[kLaneRows];
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    const float max = fmaxf(state->max[i], tile_max[i]);
    factor[i] = max == state->max[i] ? 1 : FastExp(state->max[i] - max);
    state->max[i] = max;
  }
  if (__ballot_sync(kAllLanes, factor[0] != 1 || factor[1] != 1) == 0) return;
  for (uint32_t e = 0; e < 4; ++e) {
    state->sum[e] *= factor[e / 2];
    for (uint32_t j = 0; j < n; ++j) state->out[j][e] *= factor[e / 2];
  }
}

// Scores become weights.
template <uint32_t n>
__device__ __forceinline__ void Weigh(const float (&max)[kLaneRows], float (&scores)[n][4]) {
  for (uint32_t j = 0; j < n; ++j) {
    for (uint32_t e = 0; e < 4; ++e) {
      // A row that has seen no key has weights of 0.
      const float row_max = max[e / 2] == -INFINITY ? 0 : max[e / 2];
      scores[j][e] = FastExp(scores[j][e] - row_max);
    }
  }
}

// Adds 16 keys, whose weights are `a`, to sums and outputs: n tiles of 8 columns of V.
template <typename Kv, uint32_t dim, uint32_t n>
__device__ __forceinline__ void AddValues(const uint32_t (&a)[4], SharedSpan<Kv> v,
                                          State<n>* state) {
  const uint32_t ones = PairBits<Kv>(1, 1);
  Mma<Kv>(state->sum, a, ones, ones);
  for (uint32_t j = 0; j < n; j += 2) {
    uint32_t b[4];
    LoadMatrixTransposed(v + j * 8, kStride<dim>, b);
    Mma<Kv>(state->out[j], a, b[0], b[1]);
    Mma<Kv>(state->out[j + 1], a, b[2], b[3]);
  }
}

// ---- A tile -------------------------------------------------------------------------------------

template <typename Kv, uint32_t dim>
struct Wide {
  static constexpr uint32_t kItemRows = kWideItemRows;
  static constexpr uint32_t kStages = 2;
  static constexpr uint32_t kPSize = 0;
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
  static constexpr uint32_t kStages = 2;  // more blocks instead of more of them
  static constexpr uint32_t kPSize = kRows * (kTile<dim> + kPad);
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
          const Pair<Kv> pair = {FromFloat<Kv>(scores[j][2 * i]),
                                 FromFloat<Kv>(scores[j][2 * i + 1])};
          const uint32_t key = warp * 16 + j * 8 + threadIdx.x % 4 * 2;
          tiles.p[(row + 8 * i) * kPStride + key] = pair.v[0];
          tiles.p[(row + 8 * i) * kPStride + key + 1] = pair.v[1];
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
        PartOf(args, item.part_row + (split - item.split_begin) * rows + r, blockIdx.y);
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
    const RowPlace place = PlaceOf(args, item, row, blockIdx.y);
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

template <typename Way, typename Kv, typename Out, uint32_t dim>
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
  constexpr uint32_t kStages = Way::kStages;
  const uint32_t first_tile = keys.begin / kTile<dim>;
  const uint32_t end_tile = (keys.end + kTile<dim> - 1) / kTile<dim>;
  TileKeys<Kv, dim> next(args, item, keys);
  next.Find(first_tile * kTile<dim>);
  LoadQueries<Kv, dim>(args, item, Way::kItemRows, tiles);
  for (uint32_t ahead = first_tile; ahead + 1 < first_tile + kStages; ++ahead) {
    if (ahead < end_tile) next.Fetch(ahead % kStages, tiles);
    CopyCommit();
    next.Find((ahead + 1) * kTile<dim>);
  }
  for (uint32_t tile = first_tile; tile < end_tile; ++tile) {
    CopyWait<kStages - 2>();
    __syncthreads();  // the tile is there, and nobody computes with the one before any more
    const uint32_t ahead = tile + kStages - 1;
    if (ahead < end_tile) next.Fetch(ahead % kStages, tiles);
    CopyCommit();
    next.Find((ahead + 1) * kTile<dim>);
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
template <typename Way, typename Kv, typename Out, uint32_t dim>
__global__ void __launch_bounds__(kThreads) MmaAttentionKernel(AttentionArgs args) {
  StartNext();
  AfterPrevious();
  const AttentionItem item = args.items[blockIdx.x];
  if (item.row_begin == item.row_end || !Way::Has(item.row_end - item.row_begin)) return;
  DynamicShared shared;
  const Tiles<Kv> tiles = {shared.Take<Kv>(Way::kItemRows * kStride<dim>),
                           shared.Take<Kv>(Way::kStages * kTileSize<dim>),
                           shared.Take<Kv>(Way::kStages * kTileSize<dim>),
                           shared.Take<Kv>(Way::kPSize),
                           shared.Take<float>(kWarps * kRows),
                           shared.Take<uint32_t>(1)};
  WalkItem<Way, Kv, Out, dim>(args, item, tiles);
}

template <template <typename, uint32_t> class Way, typename Kv, typename Out, uint32_t dim>
void RunWay(const AttentionArgs& args, Stream stream) {
  using W = Way<Kv, dim>;
  const uint32_t halves = W::kItemRows * kStride<dim> + 2 * W::kStages * kTileSize<dim> + W::kPSize;
  Launch({.grid_x = args.num_items,
          .grid_y = args.kv.num_kv_heads,
          .block = kThreads,
          .shared_bytes = halves * 2 + kWarps * kRows * static_cast<uint32_t>(sizeof(float)) + 16},
         MmaAttentionKernel<W, Kv, Out, dim>, args, stream);
}

template <typename Kv, typename Out, uint32_t dim>
void Run(const AttentionArgs& args, Stream stream) {
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
