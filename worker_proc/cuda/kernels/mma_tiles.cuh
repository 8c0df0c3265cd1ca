// What mma_attention.cu does with a tile of keys: copies it to shared memory, scores it, and adds
// it to the state of a lane's rows.
//
// Threads: a block of kThreads, its warps as each function says. Errors: none. Source:
// "FlashAttention-2", arXiv 2307.08691; the PTX ISA for the layouts of mma and ldmatrix; ours.
#pragma once

#include "worker_proc/cuda/kernels/attention_rows.cuh"
#include "worker_proc/cuda/kernels/rotate_head.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * kWarp;
constexpr uint32_t kRows = kNarrowItemRows;  // of a product of the tensor cores
static_assert(kRows == 16 && kWarps * kRows == kWideItemRows);

// Elements of 16 bits: with them behind each row, eight rows begin in different banks.
constexpr uint32_t kPad = 8;

template <uint32_t dim>
inline constexpr uint32_t kTile = dim > 128 ? 32 : 64;  // keys
template <uint32_t dim>
inline constexpr uint32_t kStride = dim + kPad;
template <uint32_t dim>
inline constexpr uint32_t kTileSize = kTile<dim>* kStride<dim>;  // elements

// What the block keeps in shared memory.
template <typename Kv>
struct Tiles {
  SharedSpan<Kv> q;          // [kItemRows][kStride], but for the last row's pad
  SharedSpan<Kv> k;          // [kStages][kTile][kStride]
  SharedSpan<Kv> v;          // the same
  SharedSpan<Kv> p;          // [kRows][kTile + kPad]: narrow
  SharedSpan<float> maxima;  // [kWarps][kRows]: narrow
  SharedSpan<uint32_t> is_last;
  SharedSpan<Kv> own;  // [2][dim]: the key and the value of a step's only token, where it rotates
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
      const RowPlace place = PlaceOf(args, item, item.row_begin + row, KvHeadOf(args));
      LoadRun(args.q + static_cast<size_t>(place.token) * args.q_stride + place.head * dim + d,
              values);
    }
    StoreRun(&tiles.q[row * kStride<dim> + d], values);
  }
}

// The same of a step's only token, as it is projected; and, if the item has it, the token's own key
// and value, into `own` and into the cache. A warp a head.
template <typename Kv, uint32_t dim>
__device__ __forceinline__ void RotateOwn(const AttentionArgs& args, const AttentionItem& item,
                                          bool has_own_key, const Tiles<Kv>& tiles) {
  constexpr uint32_t n = dim / kWarp;
  const RopeKvArgs& rope = args.rope;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t kv_heads = args.kv.num_kv_heads;
  const uint32_t kv_head = KvHeadOf(args);
  const uint32_t rows = item.row_end - item.row_begin;
  const uint32_t heads = has_own_key ? rows + 2 : rows;  // the queries', the key's, the value's
  const float* const angles = rope.table + static_cast<size_t>(rope.positions[0]) * dim;
  const int64_t slot = rope.slot_mapping[0];
  for (uint32_t i = threadIdx.x; i < (kRows - rows) * dim; i += kThreads) {
    tiles.q[(rows + i / dim) * kStride<dim> + i % dim] = FromFloat<Kv>(0);
  }
  for (uint32_t h = threadIdx.x / kWarp; h < heads; h += kWarps) {
    const bool is_q = h < rows;
    float v[n];
    if (h <= rows) {
      const uint32_t head =
          is_q ? PlaceOf(args, item, item.row_begin + h, kv_head).head : args.num_heads + kv_head;
      const RotatedHead<n> rotated(is_q ? rope.q_norm : rope.k_norm, rope.eps, angles);
      AfterPrevious();
      rotated.Of(args.q + head * dim, v);
    } else {
      const float* const value = args.q + (args.num_heads + kv_heads + kv_head) * dim;
      AfterPrevious();
      for (uint32_t j = 0; j < n; ++j) v[j] = value[j * kWarp + lane];
    }
    const uint32_t to = is_q ? h * kStride<dim> : (h - rows) * dim;
    const SharedSpan<Kv> row = (is_q ? tiles.q : tiles.own) + to;
    for (uint32_t j = 0; j < n; ++j) row[j * kWarp + lane] = FromFloat<Kv>(v[j]);
    if (is_q || slot < 0) continue;
    Kv* const cache = static_cast<Kv*>(h == rows ? args.kv.k : args.kv.v);
    const size_t at = CacheRow(args.kv, slot, kv_head, dim);
    for (uint32_t j = 0; j < n; ++j) cache[at + j * kWarp + lane] = FromFloat<Kv>(v[j]);
  }
  AfterPrevious();
}

// From `own` to where the token's key is in its tile.
template <typename Kv, uint32_t dim>
__device__ __forceinline__ void PutOwn(const AttentionItem& item, uint32_t stage,
                                       const Tiles<Kv>& tiles) {
  const uint32_t to = stage * kTileSize<dim> + item.keys_before % kTile<dim> * kStride<dim>;
  for (uint32_t d = threadIdx.x; d < dim; d += kThreads) {
    tiles.k[to + d] = tiles.own[d];
    tiles.v[to + d] = tiles.own[dim + d];
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
      const uint32_t row =
          (pages_[i] * args_.kv.num_kv_heads + KvHeadOf(args_)) * page_size + offset;
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

// Adds the scores of 16 rows of q against 8 n keys.
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
    for (uint32_t e = 0; e < 4; ++e) scores[j][e] = MulRounded(scores[j][e], args.scale);
  }
  if (args.softcap > 0) {
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t e = 0; e < 4; ++e) {
        scores[j][e] = MulRounded(args.softcap, FastTanh(scores[j][e] / args.softcap));
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

}  // namespace flotilla::cuda
