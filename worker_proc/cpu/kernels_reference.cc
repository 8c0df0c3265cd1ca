// The oracle: every kernel as a plain loop, to be read. Compiled for x86-64-v3 so that Fma is one
// instruction; the compiler may vectorise what it likes, as no reordering is allowed to it.
#include <immintrin.h>

#include <cstring>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {
namespace {

// a*b + c, rounded once.
inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// ((l0+l8)+(l4+l12)) + … : the one order in which 16 partial sums become one.
float Fold16(const float* lanes) {
  float sum[16];
  std::memcpy(sum, lanes, sizeof(sum));
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sum[i] += sum[i + width];
  }
  return sum[0];
}

// e^x within 2 ulp for x in [-87, 88]; clamped outside. x = n ln2 + r, e^r by its Taylor
// polynomial.
float Exp(float x) {
  if (x != x) return x;
  x = x < 88.0f ? x : 88.0f;
  x = x > -87.0f ? x : -87.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = Fma(x, 1.44269504f, kRound) - kRound;
  float r = Fma(n, -0.693359375f, x);  // ln 2 in two parts
  r = Fma(n, 2.12194440e-4f, r);
  float p = 1.3888889e-3f;
  p = Fma(p, r, 8.3333333e-3f);
  p = Fma(p, r, 4.1666667e-2f);
  p = Fma(p, r, 1.6666667e-1f);
  p = Fma(p, r, 0.5f);
  p = Fma(p, r, 1.0f);
  p = Fma(p, r, 1.0f);
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float two_to_n;
  std::memcpy(&two_to_n, &bits, sizeof(bits));
  return p * two_to_n;
}

inline float WidenBFloat16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct Float32Weights {
  using Type = float;
  static float Widen(float x) { return x; }
};
struct Float16Weights {
  using Type = uint16_t;
  static float Widen(uint16_t x) { return _cvtsh_ss(x); }
};
struct BFloat16Weights {
  using Type = uint16_t;
  static float Widen(uint16_t x) { return WidenBFloat16(x); }
};

template <typename Weights>
void GemmOf(const GemmArgs& a) {
  for (uint32_t p = a.panel_begin; p < a.panel_end; ++p) {
    const auto* weight = static_cast<const typename Weights::Type*>(a.weight) +
                         static_cast<size_t>(p) * a.in_features * kPanelRows;
    const uint32_t first = p * kPanelRows;
    const uint32_t rows = a.out_features - first < kPanelRows ? a.out_features - first : kPanelRows;
    for (uint32_t t = 0; t < a.tokens; ++t) {
      float acc[kPanelRows] = {};
      for (uint32_t k = 0; k < a.in_features; ++k) {
        const float x = a.x[t * a.x_stride + k];
        for (uint32_t r = 0; r < kPanelRows; ++r) {
          const float w = Weights::Widen(weight[static_cast<size_t>(k) * kPanelRows + r]);
          acc[r] = Fma(w, x, acc[r]);
        }
      }
      std::memcpy(a.y + t * a.y_stride + first, acc, rows * sizeof(float));
    }
  }
}

void Gemm(const GemmArgs& a) {
  switch (a.type) {
    case WeightType::kFloat32:
      return GemmOf<Float32Weights>(a);
    case WeightType::kFloat16:
      return GemmOf<Float16Weights>(a);
    case WeightType::kBFloat16:
      return GemmOf<BFloat16Weights>(a);
  }
}

void RmsNorm(const RmsNormArgs& a) {
  for (uint32_t t = 0; t < a.rows; ++t) {
    const float* x = a.x + static_cast<size_t>(t) * a.cols;
    float* out = a.out + static_cast<size_t>(t) * a.cols;
    if (a.residual != nullptr) {
      float* residual = a.residual + static_cast<size_t>(t) * a.cols;
      for (uint32_t i = 0; i < a.cols; ++i) residual[i] += x[i];
      x = residual;
    }
    float lanes[16] = {};
    for (uint32_t i = 0; i < a.cols; ++i) lanes[i % 16] = Fma(x[i], x[i], lanes[i % 16]);
    const float mean = Fold16(lanes) / static_cast<float>(a.cols);
    const float scale = 1.0f / __builtin_sqrtf(mean + a.eps);
    for (uint32_t i = 0; i < a.cols; ++i) out[i] = x[i] * scale * a.weight[i];
  }
}

void SiluMul(const float* gate_up, uint32_t rows, uint32_t cols, float* out) {
  for (uint32_t t = 0; t < rows; ++t) {
    const float* gate = gate_up + static_cast<size_t>(t) * 2 * cols;
    const float* up = gate + cols;
    for (uint32_t i = 0; i < cols; ++i) {
      const float silu = gate[i] / (1.0f + Exp(-gate[i]));
      out[static_cast<size_t>(t) * cols + i] = silu * up[i];
    }
  }
}

void GeluMul(const float* gate_up, uint32_t rows, uint32_t cols, float* out) {
  for (uint32_t t = 0; t < rows; ++t) {
    const float* gate = gate_up + static_cast<size_t>(t) * 2 * cols;
    const float* up = gate + cols;
    for (uint32_t i = 0; i < cols; ++i) {
      out[static_cast<size_t>(t) * cols + i] = ReferenceGelu(gate[i]) * up[i];
    }
  }
}

void SoftCap(float* x, size_t count, float cap) {
  const float inverse = 2.0f / cap;
  for (size_t i = 0; i < count; ++i) x[i] = cap * (1.0f - 2.0f / (1.0f + Exp(x[i] * inverse)));
}

void Rope(const RopeArgs& a) {
  const uint32_t half = a.rope_dim / 2;
  for (uint32_t t = 0; t < a.tokens; ++t) {
    const float* table = a.table + static_cast<size_t>(a.positions[t]) * half * 2;
    for (uint32_t h = 0; h < a.num_heads; ++h) {
      float* x = a.x + t * a.x_stride + static_cast<size_t>(h) * a.head_dim;
      for (uint32_t i = 0; i < half; ++i) {
        const float cosine = table[2 * i];
        const float sine = table[2 * i + 1];
        float* first = a.interleaved ? x + 2 * i : x + i;
        float* second = a.interleaved ? first + 1 : first + half;
        const float x0 = *first;
        const float x1 = *second;
        *first = Fma(x0, cosine, -(x1 * sine));
        *second = Fma(x1, cosine, x0 * sine);
      }
    }
  }
}

// To nearest even; a NaN stays one.
inline uint16_t RoundToBFloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void Store(float x, float* out) { *out = x; }
inline void Store(float x, uint16_t* out) { *out = RoundToBFloat16(x); }
inline float Load(float x) { return x; }
inline float Load(uint16_t x) { return WidenBFloat16(x); }
inline float Load(int8_t x) { return static_cast<float>(x); }

// The largest |x| as bits: without the sign, floats order as their bits do, a NaN above all.
inline uint32_t MaxBits(const float* x, uint32_t dim) {
  uint32_t max_bits = 0;
  for (uint32_t d = 0; d < dim; ++d) {
    uint32_t bits;
    std::memcpy(&bits, &x[d], sizeof(bits));
    bits &= 0x7fffffffu;
    max_bits = max_bits > bits ? max_bits : bits;
  }
  return max_bits;
}

// Element d goes to out[d * stride]. `valid`: no infinity or NaN is about.
float QuantizeRow(const float* x, uint32_t dim, bool valid, int8_t* out, size_t stride) {
  const uint32_t bits = MaxBits(x, dim);
  float max;
  std::memcpy(&max, &bits, sizeof(max));
  const bool zero = !valid || max < kMinKvMax;
  const float inverse = zero ? 0.0f : 127.0f / max;
  for (uint32_t d = 0; d < dim; ++d) {
    const float value = zero ? 0.0f : __builtin_rintf(x[d] * inverse);
    out[d * stride] = static_cast<int8_t>(static_cast<int32_t>(value));
  }
  if (!valid) return __builtin_nanf("");
  return zero ? 0.0f : max / 127.0f;
}

inline bool IsFinite(const float* x, uint32_t dim) { return MaxBits(x, dim) < 0x7f800000u; }

// What a head has in a page. Scales lie at any address.
template <typename Kv, typename Bytes>
inline Kv* KeysOf(const KvGeometry& kv, Bytes* pages, size_t head) {
  return reinterpret_cast<Kv*>(pages + head * kv.k_head_bytes());
}
template <typename Kv, typename Bytes>
inline Kv* ValuesOf(const KvGeometry& kv, Bytes* pages, size_t head) {
  return reinterpret_cast<Kv*>(pages + head * kv.v_head_bytes());
}
inline float LoadScale(const int8_t* scales, size_t i) {
  float scale;
  std::memcpy(&scale, scales + i * sizeof(scale), sizeof(scale));
  return scale;
}

// Where a token's rows of one kv head come from, and where they go.
struct KvRows {
  const float* k;
  const float* v;
  size_t head;    // page * num_kv_heads + kv head
  size_t offset;  // in the page
};
template <typename Write>
void ForEachKvRows(const WriteKvArgs& a, const Write& write) {
  for (uint32_t t = 0; t < a.tokens; ++t) {
    if (a.slot_mapping[t] < 0) continue;
    const auto slot = static_cast<size_t>(a.slot_mapping[t]);
    const size_t page = slot / a.kv.page_size;
    for (uint32_t h = 0; h < a.kv.num_kv_heads; ++h) {
      const float* k = a.k + t * a.stride + static_cast<size_t>(h) * a.kv.qk_dim;
      const float* v = a.v + t * a.stride + static_cast<size_t>(h) * a.kv.v_dim;
      write(KvRows{k, v, page * a.kv.num_kv_heads + h, slot % a.kv.page_size});
    }
  }
}

void WriteInt8Rows(const WriteKvArgs& a, const KvRows& rows) {
  float rotated[kMaxRotatedDim];
  RotateRow(rows.k, a.kv.qk_dim, rotated);
  const bool valid = IsFinite(rotated, a.kv.qk_dim) && IsFinite(rows.v, a.kv.v_dim);
  auto* const k_out = KeysOf<int8_t>(a.kv, static_cast<uint8_t*>(a.k_pages), rows.head);
  auto* const v_out = ValuesOf<int8_t>(a.kv, static_cast<uint8_t*>(a.v_pages), rows.head);
  const float k_scale =
      QuantizeRow(rotated, a.kv.qk_dim, valid, k_out + rows.offset, a.kv.page_size) /
      static_cast<float>(RotationSize(a.kv.qk_dim));
  const float v_scale = QuantizeRow(rows.v, a.kv.v_dim, valid, v_out + rows.offset * a.kv.v_dim, 1);
  std::memcpy(k_out + a.kv.k_head_size() + rows.offset * sizeof(float), &k_scale, sizeof(float));
  std::memcpy(v_out + a.kv.v_head_size() + rows.offset * sizeof(float), &v_scale, sizeof(float));
}

template <typename Kv>
void WriteRows(const WriteKvArgs& a, const KvRows& rows) {
  Kv* k_out = KeysOf<Kv>(a.kv, static_cast<uint8_t*>(a.k_pages), rows.head) + rows.offset;
  for (uint32_t d = 0; d < a.kv.qk_dim; ++d) {
    Store(rows.k[d], k_out + static_cast<size_t>(d) * a.kv.page_size);
  }
  Kv* v_out =
      ValuesOf<Kv>(a.kv, static_cast<uint8_t*>(a.v_pages), rows.head) + rows.offset * a.kv.v_dim;
  for (uint32_t d = 0; d < a.kv.v_dim; ++d) Store(rows.v[d], v_out + d);
}

void WriteKv(const WriteKvArgs& a) {
  ForEachKvRows(a, [&](const KvRows& rows) {
    switch (a.kv.type) {
      case KvType::kFloat32:
        return WriteRows<float>(a, rows);
      case KvType::kBFloat16:
        return WriteRows<uint16_t>(a, rows);
      case KvType::kInt8:
        return WriteInt8Rows(a, rows);
    }
  });
}

// One query row against the keys begin … len-1 of its sequence.
struct QueryRow {
  const uint32_t* pages;
  uint32_t kv_head;
  uint32_t begin;
  uint32_t len;
  const float* q;
};

template <typename Kv>
constexpr bool kScaled = sizeof(Kv) == sizeof(int8_t);

template <typename Kv>
float Score(const AttentionArgs& a, const QueryRow& row, uint32_t key) {
  const size_t head =
      static_cast<size_t>(row.pages[key / a.kv.page_size]) * a.kv.num_kv_heads + row.kv_head;
  const Kv* keys = KeysOf<const Kv>(a.kv, static_cast<const uint8_t*>(a.k_pages), head);
  const uint32_t offset = key % a.kv.page_size;
  float dot = 0;
  for (uint32_t d = 0; d < a.kv.qk_dim; ++d) {
    dot = Fma(row.q[d], Load(keys[static_cast<size_t>(d) * a.kv.page_size + offset]), dot);
  }
  float scale = a.scale;
  if constexpr (kScaled<Kv>) scale = LoadScale(keys + a.kv.k_head_size(), offset) * scale;
  float score = dot * scale;
  if (a.softcap > 0) SoftCap(&score, 1, a.softcap);
  return score;
}

// out += p * the key's values.
template <typename Kv>
void AddValues(const AttentionArgs& a, const QueryRow& row, uint32_t key, float p, float* out) {
  const size_t head =
      static_cast<size_t>(row.pages[key / a.kv.page_size]) * a.kv.num_kv_heads + row.kv_head;
  const Kv* values = ValuesOf<const Kv>(a.kv, static_cast<const uint8_t*>(a.v_pages), head);
  const uint32_t offset = key % a.kv.page_size;
  if constexpr (kScaled<Kv>) p = p * LoadScale(values + a.kv.v_head_size(), offset);
  const Kv* v = values + static_cast<size_t>(offset) * a.kv.v_dim;
  for (uint32_t d = 0; d < a.kv.v_dim; ++d) out[d] = Fma(p, Load(v[d]), out[d]);
}

// Keys of one split only; scores: kSplitKeys.
template <typename Kv>
void AttendRow(const AttentionArgs& a, const QueryRow& row, float* scores,
               const AttentionPart& part) {
  const uint32_t begin = row.begin, len = row.len;
  float max = -__builtin_inff();
  for (uint32_t key = begin; key < len; ++key) {
    scores[key - begin] = Score<Kv>(a, row, key);
    max = max > scores[key - begin] ? max : scores[key - begin];
  }
  float lanes[16] = {};
  for (uint32_t d = 0; d < a.kv.v_dim; ++d) part.out[d] = 0;
  for (uint32_t key = begin; key < len; ++key) {
    const float p = Exp(scores[key - begin] - max);
    lanes[key % 16] += p;
    AddValues<Kv>(a, row, key, p, part.out);
  }
  *part.max = max;
  *part.sum = Fold16(lanes);
}

void AttendSplits(const AttentionArgs& a, const QueryRow& row, uint32_t only,
                  const AttentionScratch& scratch, const AttentionPart& into) {
  *into.sum = 0;
  const auto attend = a.kv.type == KvType::kInt8       ? AttendRow<int8_t>
                      : a.kv.type == KvType::kBFloat16 ? AttendRow<uint16_t>
                                                       : AttendRow<float>;
  for (uint32_t split = row.begin / kSplitKeys; split * kSplitKeys < row.len; ++split) {
    if (only != kAllSplits && split != only) continue;
    QueryRow keys = row;
    const uint32_t begin = split * kSplitKeys, end = begin + kSplitKeys;
    keys.begin = row.begin > begin ? row.begin : begin;
    keys.len = row.len < end ? row.len : end;
    float max, sum;
    const AttentionPart part{scratch.tile_out, &max, &sum};
    attend(a, keys, scratch.scores, part);
    MergeAttention(part, 1, a.kv.v_dim, into);
  }
}

void Attention(const AttentionArgs& a, const AttentionItem& item, const AttentionScratch& scratch) {
  const uint32_t group = a.num_heads / a.kv.num_kv_heads;
  const uint32_t begin = a.cu_q_lens[item.seq];
  const uint32_t q_len = a.cu_q_lens[item.seq + 1] - begin;
  const uint32_t first_pos = a.kv_lens[item.seq] - q_len;
  const uint32_t* pages = a.page_indices + static_cast<size_t>(item.seq) * a.pages_per_seq;
  uint32_t index = 0;
  for (uint32_t i = item.token_begin; i < item.token_end; ++i) {
    for (uint32_t g = 0; g < group; ++g, ++index) {
      const size_t head = static_cast<size_t>(item.kv_head) * group + g;
      const float* q = a.q + (begin + i) * a.q_stride + head * a.kv.qk_dim;
      if (a.kv.type == KvType::kInt8) {
        RotateRow(q, a.kv.qk_dim, scratch.q);
        q = scratch.q;
      }
      const uint32_t position = first_pos + i;
      const QueryRow row{pages, item.kv_head, FirstKey(position, a.window), position + 1, q};
      const AttentionPart into{scratch.part.out + static_cast<size_t>(index) * a.kv.v_dim,
                               scratch.part.max + index, scratch.part.sum + index};
      AttendSplits(a, row, item.split, scratch, into);
    }
  }
  if (item.split == kAllSplits) FinishAttention(scratch.part, index, a.kv.v_dim);
}

}  // namespace

void RotateRow(const float* x, uint32_t dim, float* out) {
  const uint32_t size = RotationSize(dim);
  for (uint32_t begin = 0; begin < dim; begin += size) {
    // A stage moves the uppermost bit of the index to the lowest, so that all stages are alike.
    float stages[2][256];
    std::memcpy(stages[0], x + begin, size * sizeof(float));
    uint32_t from = 0;
    for (uint32_t bit = 1; bit < size; bit *= 2, from ^= 1) {
      const float* const in = stages[from];
      float* const next = stages[from ^ 1];
      for (uint32_t i = 0; i < size / 2; ++i) {
        const float a = in[i], b = in[i + size / 2];
        next[2 * i] = a + b;
        next[2 * i + 1] = a - b;
      }
    }
    std::memcpy(out + begin, stages[from], size * sizeof(float));
  }
}

void MergeAttention(const AttentionPart& part, uint32_t rows, uint32_t v_dim,
                    const AttentionPart& into) {
  for (uint32_t r = 0; r < rows; ++r) {
    if (part.sum[r] == 0) continue;
    const float* const out = part.out + static_cast<size_t>(r) * v_dim;
    float* const to = into.out + static_cast<size_t>(r) * v_dim;
    if (into.sum[r] == 0) {
      into.max[r] = part.max[r];
      into.sum[r] = part.sum[r];
      std::memcpy(to, out, v_dim * sizeof(float));
      continue;
    }
    const float max = into.max[r] > part.max[r] ? into.max[r] : part.max[r];
    const float keep = Exp(into.max[r] - max);
    const float add = Exp(part.max[r] - max);
    into.max[r] = max;
    into.sum[r] = Fma(part.sum[r], add, into.sum[r] * keep);
    for (uint32_t d = 0; d < v_dim; ++d) to[d] = Fma(out[d], add, to[d] * keep);
  }
}

void FinishAttention(const AttentionPart& part, uint32_t rows, uint32_t v_dim) {
  for (uint32_t r = 0; r < rows; ++r) {
    float* const out = part.out + static_cast<size_t>(r) * v_dim;
    for (uint32_t d = 0; d < v_dim; ++d) out[d] /= part.sum[r];
  }
}

float ReferenceExp(float x) { return Exp(x); }
float ReferenceGelu(float x) {
  const float slope = Fma(x * x, 0.0713548163f, 1.59576912f);  // 2 sqrt(2/pi) (0.044715 x^2 + 1)
  return x / (1.0f + Exp(-x * slope));
}
uint16_t ToBFloat16(float x) { return RoundToBFloat16(x); }
float FromBFloat16(uint16_t x) { return WidenBFloat16(x); }

const KernelTable& ReferenceKernels() {
  static constexpr KernelTable kTable = {"reference", Gemm, RmsNorm, SiluMul,  GeluMul,
                                         SoftCap,     Rope, WriteKv, Attention};
  return kTable;
}

}  // namespace flotilla::cpu
