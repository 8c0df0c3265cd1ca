// The CPU backend's float kernels: one table of functions an instruction set, chosen once at start.
//
// All tables give the same bits. What fixes them:
//   gemm        y[t][r] is one FMA chain over k = 0, 1, 2 … starting at 0: lanes are output rows,
//               so neither the number of tokens nor the tiling nor the thread changes a bit.
//               Weights of 16 bits are widened as they are loaded, which is exact: the bits are
//               those of the same weights in float32. (vdpbf16ps would round x to bfloat16 too, add
//               two products at once and flush denormals: other bits, and AVX2 can't follow.)
//   rms_norm    sum of squares in 16 lanes (column mod 16) by FMA, folded by Fold16.
//   attention   Keys are taken in splits at fixed positions, 0, kSplitKeys, 2 kSplitKeys …, by what
//               a query sees of them; keys outside the window take no part. Within a split:
//               score = (FMA chain over d) * scale, soft-capped if asked; p = Exp(score - max); the
//               sum of p in 16 lanes (key position mod 16), folded by Fold16; out[d] = FMA chain
//               over keys, from 0. The splits, in order, are merged into the first:
//               max' = the larger max; out[d] = fma(split's out[d], Exp(split's max - max'),
//               out[d] * Exp(max - max')), the sum likewise. In the end out[d] / sum.
//               So one thread may compute all splits of a query, or each a thread of its own.
//   soft_cap    cap * (1 - 2 / (1 + Exp(x * (2 / cap)))).
//   gelu_mul    gate / (1 + Exp(-gate * (2 u'))), u' = sqrt(2/pi) (1 + 0.044715 gate^2): the same
//   as
//               0.5 gate (1 + tanh(gate u')).
//   write_kv    bfloat16 is the upper half of a float, rounded to nearest even; attention reads it
//               back exactly, so its arithmetic is the same for both types of cache.
//               int8: each token's row of K, and of V, of a head has a scale of its own,
//               max|x| / 127, and elements x * (127 / max|x|) rounded to nearest even, so
//               -127 … 127. K's row is rotated first (RotateRow), or a few channels that are ever
//               large would cost all others their bits; its scale is divided by RotationSize,
//               which undoes the rotations' growth. If max|x| is below kMinKvMax, scale and
//               elements are 0. An infinity or a NaN in either row (rotated) makes both scales NaN
//               and all elements 0: every query that sees the key gets NaN. Attention multiplies
//               the elements as they are, q's row rotated as K's is:
//               score = (FMA chain over d of q[d] * k[d]) * (k_scale * scale), soft-capped if
//               asked; out[d] = FMA chain over keys of (p * v_scale) * v[d].
//   Exp         the polynomial of kernels_reference.cc, operation by operation.
//
// Layouts. Packed weights, of any WeightType: panels of 16 output rows, [panel][in_features][16],
// the last panel filled up with zero rows. One layer's KV cache: k
// [page][kv_head][qk_dim][page_size] (keys side by side, so that QK needs no horizontal sum), v
// [page][kv_head][page_size][v_dim]. In int8 the scales of a head's rows follow its elements, float
// [page_size], at whatever address that is.
//
// Units: elements, tokens. Threads: stateless; disjoint panels, rows, tokens and attention items
// may be computed by different threads at once. The caller owns all memory. Errors: none; shapes
// are checked when the model is loaded. Source: ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla::cpu {

inline constexpr uint32_t kPanelRows = 16;
inline constexpr uint32_t kAttentionRows = 6;  // query rows of one kv head that share reads of K, V
inline constexpr uint32_t kSplitKeys = 1024;   // a multiple of 16

inline constexpr uint32_t NumPanels(uint32_t out_features) {
  return (out_features + kPanelRows - 1) / kPanelRows;
}

enum class WeightType : uint32_t { kFloat32, kFloat16, kBFloat16 };
inline constexpr uint32_t WeightTypeBytes(WeightType type) {
  return type == WeightType::kFloat32 ? 4 : 2;
}

struct GemmArgs {
  WeightType type = WeightType::kFloat32;
  const void* weight = nullptr;  // packed elements of `type`
  uint32_t out_features = 0;
  uint32_t in_features = 0;
  const float* x = nullptr;  // [tokens, in_features], rows x_stride apart
  size_t x_stride = 0;
  uint32_t tokens = 0;
  float* y = nullptr;  // [tokens, out_features], rows y_stride apart
  size_t y_stride = 0;
  uint32_t panel_begin = 0;  // this call's share: panels [panel_begin, panel_end)
  uint32_t panel_end = 0;
};

struct RmsNormArgs {
  const float* x = nullptr;   // [rows, cols], dense
  float* residual = nullptr;  // null, or [rows, cols]: residual += x first, then normed
  const float* weight = nullptr;
  float eps = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  float* out = nullptr;  // [rows, cols]; may be x
};

struct RopeArgs {
  float* x = nullptr;  // [tokens, num_heads, head_dim], tokens x_stride apart; in place
  size_t x_stride = 0;
  const uint32_t* positions = nullptr;  // [tokens]
  uint32_t tokens = 0;
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;
  uint32_t rope_dim = 0;         // leading dims that rotate
  bool interleaved = false;      // pairs (2i, 2i+1), else (i, i + rope_dim / 2)
  const float* table = nullptr;  // [position][rope_dim / 2][cos, sin]
};

enum class KvType : uint32_t { kFloat32, kBFloat16, kInt8 };
inline constexpr float kMinKvMax = 1e-30f;  // keeps 127 / max|x| finite and the scale normal

// Bytes of a key's K, or V, of one head: `dim` elements and, in int8, their scale.
inline constexpr size_t KvRowBytes(KvType type, uint32_t dim) {
  return type == KvType::kInt8       ? dim + sizeof(float)
         : type == KvType::kBFloat16 ? size_t{dim} * 2
                                     : size_t{dim} * 4;
}

struct KvGeometry {
  uint32_t page_size = 0;
  uint32_t num_kv_heads = 0;
  uint32_t qk_dim = 0;
  uint32_t v_dim = 0;
  KvType type = KvType::kFloat32;
  // Elements of one head in one page, and bytes with its scales.
  size_t k_head_size() const { return static_cast<size_t>(qk_dim) * page_size; }
  size_t v_head_size() const { return static_cast<size_t>(v_dim) * page_size; }
  size_t k_head_bytes() const { return KvRowBytes(type, qk_dim) * page_size; }
  size_t v_head_bytes() const { return KvRowBytes(type, v_dim) * page_size; }
};

struct WriteKvArgs {
  KvGeometry kv;
  const float* k = nullptr;  // [tokens, num_kv_heads, qk_dim], tokens stride apart
  const float* v = nullptr;  // [tokens, num_kv_heads, v_dim]
  size_t stride = 0;
  const int64_t* slot_mapping = nullptr;  // [tokens]: page * page_size + offset; -1: no write
  uint32_t tokens = 0;
  void* k_pages = nullptr;  // of kv.type
  void* v_pages = nullptr;
};

// Ragged paged attention (requirement 003): sequence s has the query tokens cu_q_lens[s] …
// cu_q_lens[s+1]-1, which are the last of its kv_lens[s] keys; a query sees the keys up to itself,
// or the last `window` of these.
struct AttentionArgs {
  KvGeometry kv;
  uint32_t num_heads = 0;  // query heads, a multiple of num_kv_heads
  float scale = 0;
  float softcap = 0;         // 0: none
  uint32_t window = 0;       // a query sees itself and window - 1 keys before; 0: all
  const float* q = nullptr;  // [tokens, num_heads, qk_dim], tokens q_stride apart
  size_t q_stride = 0;
  const void* k_pages = nullptr;  // of kv.type
  const void* v_pages = nullptr;
  const uint32_t* cu_q_lens = nullptr;     // [sequences + 1]
  const uint32_t* kv_lens = nullptr;       // [sequences]
  const uint32_t* page_indices = nullptr;  // [sequences, pages_per_seq]
  uint32_t pages_per_seq = 0;
};

// A share of the work: some query tokens of one sequence with the query heads of one kv head, over
// all keys or those of one split.
inline constexpr uint32_t kAllSplits = UINT32_MAX;
struct AttentionItem {
  uint32_t seq = 0;
  uint32_t kv_head = 0;
  uint32_t token_begin = 0;  // from the sequence's first query token
  uint32_t token_end = 0;
  uint32_t split = kAllSplits;
  uint32_t part_row = 0;  // of one split: where the caller keeps its result
};

// The first key that the query at `position` sees.
inline constexpr uint32_t FirstKey(uint32_t position, uint32_t window) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

// Query rows over some of their keys, in the order (token, head of the kv head). A row that sees
// none of these has the sum 0, and no other.
struct AttentionPart {
  float* out = nullptr;  // [rows, v_dim], dense; not divided by the sum yet
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
};

// Where a thread computes an item.
inline constexpr uint32_t kScoresStride = kSplitKeys + 16;
struct AttentionScratch {
  float* scores = nullptr;              // kAttentionRows rows of kScoresStride
  float* tile_out = nullptr;            // kAttentionRows rows of v_dim
  float* q = nullptr;                   // in int8: the item's rows of qk_dim, rotated
  AttentionPart part;                   // the item's result; if it is of all splits, divided
  const AttentionItem* next = nullptr;  // what this thread may well compute then: a hint, or null
};

struct KernelTable {
  const char* name;
  void (*gemm)(const GemmArgs&);
  void (*rms_norm)(const RmsNormArgs&);
  // out[i] = silu(gate_up[i]) * gate_up[cols + i] for each row of 2 * cols.
  void (*silu_mul)(const float* gate_up, uint32_t rows, uint32_t cols, float* out);
  // The same with GELU's approximation by tanh.
  void (*gelu_mul)(const float* gate_up, uint32_t rows, uint32_t cols, float* out);
  // x[i] = cap * tanh(x[i] / cap), within 1e-7 * cap.
  void (*soft_cap)(float* x, size_t count, float cap);
  void (*rope)(const RopeArgs&);
  void (*write_kv)(const WriteKvArgs&);
  void (*attention)(const AttentionArgs&, const AttentionItem&, const AttentionScratch&);
};

const KernelTable& ReferenceKernels();  // plain loops: the oracle
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();

// Times the Walsh-Hadamard matrix, a block of RotationSize after the other: 1 and -1, the sign of
// row i and column j that of (-1)^popcount(i & j). As butterflies from the uppermost bit to the
// lowest: a + b, a - b. dim is at most kMaxRotatedDim.
inline constexpr uint32_t kMaxRotatedDim = 1024;
inline constexpr uint32_t RotationSize(uint32_t dim) {
  const uint32_t power = dim & (~dim + 1);  // the largest power of two that divides dim
  return power < 256 ? power : 256;
}
void RotateRow(const float* x, uint32_t dim, float* out);

// Adds the next split of `rows` rows to those before.
void MergeAttention(const AttentionPart& part, uint32_t rows, uint32_t v_dim,
                    const AttentionPart& into);
// Divides by the sums.
void FinishAttention(const AttentionPart& part, uint32_t rows, uint32_t v_dim);

// Exp and GELU as the kernels compute them.
float ReferenceExp(float x);
float ReferenceGelu(float x);

// bfloat16 as write_kv makes it and attention reads it.
uint16_t ToBFloat16(float x);
float FromBFloat16(uint16_t x);

}  // namespace flotilla::cpu
