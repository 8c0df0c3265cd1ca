#include "worker_proc/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cpu/buffer.h"

namespace flotilla {
namespace {

using cpu::Buffer;
using cpu::kPanelRows;

struct CpuLinear final : LinearWeight {
  Buffer packed;
};
struct CpuVector final : VectorWeight {
  std::vector<float> values;
};
struct CpuEmbedding final : EmbeddingWeight {
  const TensorView* view = nullptr;  // rows are dequantised as they are used
};
struct CpuRope final : RopeTable {
  std::vector<float> table;
};

float* F32(Tensor tensor) { return static_cast<float*>(tensor.data); }

class CpuBackend final : public Backend {
 public:
  CpuBackend(const cpu::KernelTable* kernels, const Heartbeat& heartbeat)
      : kernels_(*kernels), heartbeat_(heartbeat) {}

  const char* name() const override { return "cpu-float"; }
  BackendMemory memory() const override { return memory_; }

  uint64_t WeightBytes(const TensorView& view) const override {
    return view.rows * view.cols * sizeof(float);
  }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) override;
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view) override;
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) override;
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) override;
  StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) override;
  Status Warmup(const StepBounds& bounds) override;
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return KvPageBytesOf(shape, sizeof(float));
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override;

  AttentionContext BeginStep(const ForwardBatch& batch) override;
  void Embed(const EmbeddingWeight& weight, const AttentionContext& context, Tensor out) override;
  void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) override;
  void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                  Tensor out) override;
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override;
  void RopeAndWriteKv(const RopeTable& rope, const AttentionLayer& layer,
                      const AttentionContext& context, Tensor qkv) override;
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override;
  void SiluMul(Tensor gate_up, Tensor out) override {
    kernels_.silu_mul(F32(gate_up), gate_up.rows, out.cols, F32(out));
  }
  void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) override;
  Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          Tensor out) override {
    return GatherTo(collective, cols, local, kAllRanks, out);
  }
  Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) override {
    return GatherTo(collective, cols, local, root, out);
  }
  Status Finish() override { return OkStatus(); }  // every op is synchronous
  StatusOr<std::span<const float>> ReadLogits(Tensor logits) override {
    return std::span<const float>(F32(logits), static_cast<size_t>(logits.rows) * logits.cols);
  }

 private:
  static constexpr uint32_t kAllRanks = UINT32_MAX;
  Status GatherTo(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                  uint32_t root, Tensor out);
  cpu::KvGeometry Geometry() const {
    return {kv_shape_.page_size, kv_shape_.num_kv_heads, kv_shape_.qk_dim, kv_shape_.v_dim};
  }
  float* KPages(uint32_t layer) const { return kv_cache_.data() + layer * kv_layer_floats_; }
  float* VPages(uint32_t layer) const { return KPages(layer) + kv_layer_k_floats_; }

  const cpu::KernelTable& kernels_;
  const Heartbeat heartbeat_;
  BackendMemory memory_;
  std::vector<Buffer> tensors_;
  size_t largest_tensor_ = 0;  // floats
  Buffer staging_;             // what a gather receives, before its columns are in place
  Buffer scores_;              // attention: kAttentionRows rows
  size_t scores_stride_ = 0;
  std::vector<size_t> gather_counts_;

  KvCacheShape kv_shape_;
  Buffer kv_cache_;  // [layer][k pages | v pages]
  size_t kv_layer_floats_ = 0;
  size_t kv_layer_k_floats_ = 0;
};

// ---- Start ------------------------------------------------------------------------------------

StatusOr<std::unique_ptr<LinearWeight>> CpuBackend::LoadLinear(std::span<const WeightRows> rows) {
  auto weight = std::make_unique<CpuLinear>();
  const uint64_t k = rows.front().view->cols;
  uint64_t out = 0;
  for (const WeightRows& part : rows) {
    CHECK(part.view->cols == k && part.begin <= part.end && part.end <= part.view->rows);
    out += part.end - part.begin;
  }
  weight->in_features = static_cast<uint32_t>(k);
  weight->out_features = static_cast<uint32_t>(out);
  const uint64_t panels = (out + kPanelRows - 1) / kPanelRows;
  ASSIGN_OR_RETURN(weight->packed, Buffer::Create(panels * kPanelRows * k, "weights", heartbeat_));

  // A panel of rows at a time, then transposed: rows of a panel may come from different tensors.
  std::vector<float> panel_rows(kPanelRows * k, 0.0f);
  float* packed = weight->packed.data();
  uint64_t filled = 0;
  const auto flush = [&] {
    std::fill(panel_rows.begin() + static_cast<ptrdiff_t>(filled * k), panel_rows.end(), 0.0f);
    for (uint64_t i = 0; i < k; ++i) {
      for (uint32_t r = 0; r < kPanelRows; ++r) *packed++ = panel_rows[r * k + i];
    }
    filled = 0;
  };
  for (const WeightRows& part : rows) {
    for (uint64_t r = part.begin; r < part.end;) {
      const uint64_t n = std::min<uint64_t>(part.end - r, kPanelRows - filled);
      DequantizeRows(*part.view, r, r + n, panel_rows.data() + filled * k);
      r += n;
      filled += n;
      if (filled == kPanelRows) flush();
    }
  }
  if (filled > 0) flush();
  memory_.weights += weight->packed.bytes();
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<VectorWeight>> CpuBackend::LoadVector(const TensorView& view) {
  auto weight = std::make_unique<CpuVector>();
  weight->size = static_cast<uint32_t>(view.cols);
  weight->values.resize(view.cols);
  DequantizeRows(view, 0, 1, weight->values.data());
  memory_.weights += weight->values.size() * sizeof(float);
  return std::unique_ptr<VectorWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<EmbeddingWeight>> CpuBackend::LoadEmbedding(const TensorView& view) {
  auto weight = std::make_unique<CpuEmbedding>();
  weight->rows = static_cast<uint32_t>(view.rows);
  weight->cols = static_cast<uint32_t>(view.cols);
  weight->view = &view;
  return std::unique_ptr<EmbeddingWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<RopeTable>> CpuBackend::MakeRope(const RopeSpec& spec) {
  auto rope = std::make_unique<CpuRope>();
  rope->spec = spec;
  const uint32_t half = spec.dim / 2;
  rope->table.resize(static_cast<size_t>(spec.max_positions) * half * 2);
  std::vector<double> frequencies(half);
  for (uint32_t i = 0; i < half; ++i) {
    frequencies[i] = std::pow(static_cast<double>(spec.theta), -2.0 * i / spec.dim);
  }
  float* out = rope->table.data();
  for (uint32_t position = 0; position < spec.max_positions; ++position) {
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = position * frequencies[i];
      *out++ = static_cast<float>(std::cos(angle));
      *out++ = static_cast<float>(std::sin(angle));
    }
  }
  memory_.weights += rope->table.size() * sizeof(float);
  return std::unique_ptr<RopeTable>(std::move(rope));
}

StatusOr<Tensor> CpuBackend::NewTensor(TensorUse, uint32_t max_rows, uint32_t cols) {
  const size_t floats = static_cast<size_t>(max_rows) * cols;
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(floats, "activations", heartbeat_));
  memory_.activations += buffer.bytes();
  largest_tensor_ = std::max(largest_tensor_, floats);
  const Tensor tensor{buffer.data(), max_rows, cols};
  tensors_.push_back(std::move(buffer));
  return tensor;
}

Status CpuBackend::Warmup(const StepBounds& bounds) {
  ASSIGN_OR_RETURN(staging_, Buffer::Create(largest_tensor_, "activations", heartbeat_));
  scores_stride_ = (static_cast<size_t>(bounds.max_positions) + 64 + 15) / 16 * 16;
  ASSIGN_OR_RETURN(scores_,
                   Buffer::Create(cpu::kAttentionRows * scores_stride_, "activations", heartbeat_));
  memory_.activations += staging_.bytes() + scores_.bytes();
  return OkStatus();
}

Status CpuBackend::AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) {
  kv_shape_ = shape;
  const cpu::KvGeometry kv = Geometry();
  const size_t heads = static_cast<size_t>(num_pages) * shape.num_kv_heads;
  kv_layer_k_floats_ = heads * kv.k_head_floats();
  kv_layer_floats_ = kv_layer_k_floats_ + heads * kv.v_head_floats();
  kv_cache_ = Buffer();
  ASSIGN_OR_RETURN(kv_cache_,
                   Buffer::Create(shape.num_layers * kv_layer_floats_, "KV cache", heartbeat_));
  memory_.kv_cache = kv_cache_.bytes();
  return OkStatus();
}

// ---- A step -----------------------------------------------------------------------------------

AttentionContext CpuBackend::BeginStep(const ForwardBatch& batch) {
  return {batch.num_tokens,           batch.num_seqs,
          batch.input_ids.data(),     batch.positions.data(),
          batch.out_cache_loc.data(), batch.cu_q_lens.data(),
          batch.kv_lens.data(),       batch.page_indices.data(),
          batch.pages_per_seq};
}

void CpuBackend::Embed(const EmbeddingWeight& weight, const AttentionContext& context, Tensor out) {
  const TensorView& view = *static_cast<const CpuEmbedding&>(weight).view;
  for (uint32_t t = 0; t < context.num_tokens; ++t) {
    const auto id = static_cast<uint64_t>(context.input_ids[t]);
    DequantizeRows(view, id, id + 1, F32(out) + static_cast<size_t>(t) * out.cols);
  }
}

void CpuBackend::RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) {
  const auto& w = static_cast<const CpuVector&>(weight);
  kernels_.rms_norm({F32(x), nullptr, w.values.data(), eps, x.rows, x.cols, F32(out)});
}

void CpuBackend::AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                            Tensor out) {
  const auto& w = static_cast<const CpuVector&>(weight);
  kernels_.rms_norm({F32(x), F32(residual), w.values.data(), eps, x.rows, x.cols, F32(out)});
}

void CpuBackend::Linear(const LinearWeight& weight, Tensor x, Tensor out) {
  const auto& w = static_cast<const CpuLinear&>(weight);
  DCHECK(x.cols == w.in_features && out.cols == w.out_features && x.rows == out.rows);
  kernels_.gemm(
      {w.packed.data(), w.out_features, w.in_features, F32(x), x.cols, x.rows, F32(out), out.cols});
}

void CpuBackend::RopeAndWriteKv(const RopeTable& rope, const AttentionLayer& layer,
                                const AttentionContext& context, Tensor qkv) {
  float* const q = F32(qkv);
  float* const k = q + static_cast<size_t>(layer.num_heads) * layer.qk_dim;
  float* const v = k + static_cast<size_t>(layer.num_kv_heads) * layer.qk_dim;
  // q and k heads lie side by side: one pass rotates both.
  kernels_.rope({q, qkv.cols, context.positions, context.num_tokens,
                 layer.num_heads + layer.num_kv_heads, layer.qk_dim, rope.spec.dim,
                 rope.spec.interleaved, static_cast<const CpuRope&>(rope).table.data()});
  if (!layer.writes_kv) return;
  kernels_.write_kv({Geometry(), k, v, qkv.cols, context.slot_mapping, context.num_tokens,
                     KPages(layer.layer), VPages(layer.layer)});
}

void CpuBackend::RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                                      Tensor qkv, Tensor out) {
  cpu::AttentionArgs args;
  args.kv = Geometry();
  args.num_heads = layer.num_heads;
  args.scale = layer.scale;
  args.q = F32(qkv);
  args.q_stride = qkv.cols;
  args.k_pages = KPages(layer.layer);
  args.v_pages = VPages(layer.layer);
  args.num_seqs = context.num_seqs;
  args.cu_q_lens = context.cu_q_lens;
  args.kv_lens = context.kv_lens;
  args.page_indices = context.page_indices;
  args.pages_per_seq = context.pages_per_seq;
  args.out = F32(out);
  args.scores = scores_.data();
  args.scores_stride = scores_stride_;
  kernels_.attention(args);
}

void CpuBackend::SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(F32(out) + i * out.cols, F32(x) + static_cast<size_t>(rows[i]) * x.cols,
                x.cols * sizeof(float));
  }
}

// The collective puts rank after rank; columns of a token must lie side by side.
Status CpuBackend::GatherTo(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                            uint32_t root, Tensor out) {
  const bool receives = root == kAllRanks || root == collective.rank();
  gather_counts_.assign(cols.begin(), cols.end());
  size_t total = 0;
  for (size_t& count : gather_counts_) {
    total += count;
    count *= local.rows * sizeof(float);
  }
  float* const received = local.rows == 1 ? F32(out) : staging_.data();
  const std::span<const std::byte> in(static_cast<const std::byte*>(local.data),
                                      gather_counts_[collective.rank()]);
  std::span<std::byte> bytes;
  if (receives) {
    bytes = {reinterpret_cast<std::byte*>(received), total * local.rows * sizeof(float)};
  }
  RETURN_IF_ERROR(root == kAllRanks ? collective.AllGather(in, gather_counts_, bytes)
                                    : collective.Gather(in, gather_counts_, bytes, root));
  if (!receives || local.rows == 1) return OkStatus();
  const float* from = received;
  size_t column = 0;
  for (uint32_t c : cols) {
    for (uint32_t t = 0; t < local.rows; ++t, from += c) {
      std::memcpy(F32(out) + t * total + column, from, c * sizeof(float));
    }
    column += c;
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const cpu::KernelTable* kernels,
                                        const Heartbeat& heartbeat) {
  return std::make_unique<CpuBackend>(kernels, heartbeat);
}

}  // namespace flotilla
