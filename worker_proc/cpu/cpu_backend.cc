#include "worker_proc/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cpu/attention_items.h"
#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_gather.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/cpu_weights.h"

namespace flotilla {
namespace {

using cpu::F32;
using cpu::F32Row;

constexpr size_t kActivationChunk = size_t{2} << 20;
constexpr uint32_t kRowsAPiece = 8;  // of ops that take well under a microsecond a row
constexpr uint32_t kPanelUnit = 4;   // panels that a kernel computes side by side

const char* KvTypeName(cpu::KvType type) {
  return type == cpu::KvType::kFloat32 ? "float32" : "bfloat16";
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : kernels_(*options.kernels),
        kv_type_(options.kv_cache_dtype),
        name_(StrCat("cpu-float32-kv-", KvTypeName(kv_type_))),
        heartbeat_(options.heartbeat),
        pool_(options.threads),
        weights_(&pool_, options.heartbeat),
        activations_("activations", kActivationChunk) {}

  const char* name() const override { return name_.c_str(); }
  BackendMemory memory() const override {
    return {weights_.matrix_bytes() + weights_.other_bytes(), activations_.bytes(),
            kv_cache_.bytes()};
  }

  uint64_t WeightBytes(const TensorView& view) const override { return weights_.WeightBytes(view); }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) override {
    return weights_.LoadLinear(rows);
  }
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view) override {
    return weights_.LoadVector(view);
  }
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) override {
    return weights_.LoadEmbedding(view);
  }
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) override {
    return weights_.MakeRope(spec);
  }
  StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) override;
  Status Warmup(const StepBounds& bounds) override;
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return KvPageBytesOf(shape, cpu::KvTypeBytes(kv_type_));
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override;

  AttentionContext BeginStep(const ForwardBatch& batch) override;
  void Embed(const EmbeddingWeight& weight, const AttentionContext& context, Tensor out) override;
  void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) override {
    Norm(x, nullptr, weight, eps, out);
  }
  void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                  Tensor out) override {
    Norm(x, &residual, weight, eps, out);
  }
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override;
  void RopeAndWriteKv(const RopeTable& rope, const AttentionLayer& layer,
                      const AttentionContext& context, Tensor qkv) override;
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override;
  void SiluMul(Tensor gate_up, Tensor out) override;
  void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) override;
  Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          Tensor out) override {
    return gather_->Run(collective, cols, local, cpu::ColumnGather::kAllRanks, out);
  }
  Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) override {
    return gather_->Run(collective, cols, local, root, out);
  }
  Status Finish() override { return OkStatus(); }
  StatusOr<std::span<const float>> ReadLogits(Tensor logits) override {
    return std::span<const float>(F32(logits), static_cast<size_t>(logits.rows) * logits.cols);
  }

 private:
  void Norm(Tensor x, const Tensor* residual, const VectorWeight& weight, float eps, Tensor out);
  // f(begin, end) over the rows of an op that takes little time a row.
  template <typename F>
  void ForRows(uint32_t rows, const F& f) {
    pool_.ParallelFor(rows, std::max(kRowsAPiece, pool_.Grain(rows)),
                      [&](uint32_t begin, uint32_t end, uint32_t) { f(begin, end); });
  }
  // The step's attention work and each thread's scratch, for layers of this geometry.
  void PrepareAttention(const AttentionLayer& layer, const AttentionContext& context);
  cpu::KvGeometry Geometry() const {
    return {kv_shape_.page_size, kv_shape_.num_kv_heads, kv_shape_.qk_dim, kv_shape_.v_dim,
            kv_type_};
  }
  std::byte* KPages(uint32_t layer) const { return kv_cache_.data() + layer * kv_layer_bytes_; }
  std::byte* VPages(uint32_t layer) const { return KPages(layer) + kv_layer_k_bytes_; }

  const cpu::KernelTable& kernels_;
  const cpu::KvType kv_type_;
  const std::string name_;
  const Heartbeat heartbeat_;
  cpu::ThreadPool pool_;
  cpu::WeightStore weights_;
  cpu::Arena activations_;
  std::deque<cpu::CpuTensor> tensors_;  // what Tensor::data points to
  size_t largest_tensor_ = 0;           // bytes
  std::optional<cpu::ColumnGather> gather_;

  KvCacheShape kv_shape_;
  cpu::Buffer kv_cache_;  // [layer][k pages | v pages]
  size_t kv_layer_bytes_ = 0;
  size_t kv_layer_k_bytes_ = 0;

  // Attention: what all layers of a step share.
  std::vector<cpu::AttentionItem> items_;
  std::pair<uint32_t, uint32_t> items_heads_;   // query and kv heads that items_ are for; 0: none
  std::vector<cpu::AttentionScratch> scratch_;  // of each worker
  std::vector<std::vector<float>> item_outputs_;
};

// ---- Start ------------------------------------------------------------------------------------

StatusOr<Tensor> CpuBackend::NewTensor(TensorUse, uint32_t max_rows, uint32_t cols) {
  const size_t bytes = static_cast<size_t>(max_rows) * cols * sizeof(float);
  ASSIGN_OR_RETURN(std::byte * memory, activations_.Allocate(bytes));
  largest_tensor_ = std::max(largest_tensor_, bytes);
  tensors_.push_back({reinterpret_cast<float*>(memory)});
  return Tensor{&tensors_.back(), max_rows, cols};
}

Status CpuBackend::Warmup(const StepBounds& bounds) {
  ASSIGN_OR_RETURN(std::byte * staging, activations_.Allocate(largest_tensor_));
  gather_.emplace(&pool_, staging);
  const size_t stride = (static_cast<size_t>(bounds.max_positions) + 64 + 15) / 16 * 16;
  for (uint32_t worker = 0; worker < pool_.threads(); ++worker) {
    ASSIGN_OR_RETURN(std::byte * scores,
                     activations_.Allocate(cpu::kAttentionRows * stride * sizeof(float)));
    scratch_.push_back({reinterpret_cast<float*>(scores), stride, nullptr});
  }
  item_outputs_.resize(pool_.threads());
  activations_.Touch(&pool_, heartbeat_);
  return OkStatus();
}

Status CpuBackend::AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) {
  kv_shape_ = shape;
  const cpu::KvGeometry kv = Geometry();
  const size_t heads = static_cast<size_t>(num_pages) * shape.num_kv_heads;
  kv_layer_k_bytes_ = heads * kv.k_head_size() * cpu::KvTypeBytes(kv_type_);
  kv_layer_bytes_ = kv_layer_k_bytes_ + heads * kv.v_head_size() * cpu::KvTypeBytes(kv_type_);
  kv_cache_ = cpu::Buffer();
  ASSIGN_OR_RETURN(kv_cache_, cpu::Buffer::Create(shape.num_layers * kv_layer_bytes_, "KV cache"));
  kv_cache_.Touch(&pool_, heartbeat_);
  return OkStatus();
}

// ---- A step -----------------------------------------------------------------------------------

AttentionContext CpuBackend::BeginStep(const ForwardBatch& batch) {
  items_heads_ = {0, 0};
  return {batch.num_tokens,           batch.num_seqs,
          batch.input_ids.data(),     batch.positions.data(),
          batch.out_cache_loc.data(), batch.cu_q_lens.data(),
          batch.kv_lens.data(),       batch.page_indices.data(),
          batch.pages_per_seq};
}

void CpuBackend::Embed(const EmbeddingWeight& weight, const AttentionContext& context, Tensor out) {
  const TensorView& view = *static_cast<const cpu::CpuEmbedding&>(weight).view;
  ForRows(context.num_tokens, [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; ++t) {
      const auto id = static_cast<uint64_t>(context.input_ids[t]);
      DequantizeRows(view, id, id + 1, F32Row(out, t));
    }
  });
}

void CpuBackend::Norm(Tensor x, const Tensor* residual, const VectorWeight& weight, float eps,
                      Tensor out) {
  const auto& w = static_cast<const cpu::CpuVector&>(weight);
  ForRows(x.rows, [&](uint32_t begin, uint32_t end) {
    kernels_.rms_norm({F32Row(x, begin), residual ? F32Row(*residual, begin) : nullptr,
                       w.values.data(), eps, end - begin, x.cols, F32Row(out, begin)});
  });
}

void CpuBackend::Linear(const LinearWeight& weight, Tensor x, Tensor out) {
  const auto& w = static_cast<const cpu::CpuLinear&>(weight);
  DCHECK(x.cols == w.in_features && out.cols == w.out_features && x.rows == out.rows);
  const uint32_t panels = cpu::NumPanels(w.out_features);
  pool_.ParallelFor(panels, pool_.Grain(panels, kPanelUnit),
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      kernels_.gemm({w.packed, w.out_features, w.in_features, F32(x), x.cols,
                                     x.rows, F32(out), out.cols, begin, end});
                    });
}

void CpuBackend::RopeAndWriteKv(const RopeTable& rope, const AttentionLayer& layer,
                                const AttentionContext& context, Tensor qkv) {
  const float* table = static_cast<const cpu::CpuRope&>(rope).table.data();
  const size_t k_col = static_cast<size_t>(layer.num_heads) * layer.qk_dim;
  const size_t v_col = k_col + static_cast<size_t>(layer.num_kv_heads) * layer.qk_dim;
  ForRows(context.num_tokens, [&](uint32_t begin, uint32_t end) {
    float* const q = F32Row(qkv, begin);
    // q and k heads lie side by side: one pass rotates both.
    kernels_.rope({q, qkv.cols, context.positions + begin, end - begin,
                   layer.num_heads + layer.num_kv_heads, layer.qk_dim, rope.spec.dim,
                   rope.spec.interleaved, table});
    if (!layer.writes_kv) return;
    kernels_.write_kv({Geometry(), q + k_col, q + v_col, qkv.cols, context.slot_mapping + begin,
                       end - begin, KPages(layer.layer), VPages(layer.layer)});
  });
}

void CpuBackend::PrepareAttention(const AttentionLayer& layer, const AttentionContext& context) {
  const std::pair<uint32_t, uint32_t> heads(layer.num_heads, layer.num_kv_heads);
  if (items_heads_ == heads) return;
  items_heads_ = heads;
  const uint32_t group = layer.num_heads / layer.num_kv_heads;
  cpu::MakeAttentionItems({context.num_seqs, context.cu_q_lens, context.kv_lens, layer.num_kv_heads,
                           group, pool_.threads() * 8},
                          &items_);
  const size_t floats = static_cast<size_t>(cpu::MaxItemTokens(group)) * group * layer.v_dim;
  for (uint32_t worker = 0; worker < pool_.threads(); ++worker) {
    if (item_outputs_[worker].size() < floats) item_outputs_[worker].resize(floats);
    scratch_[worker].out = item_outputs_[worker].data();
  }
}

void CpuBackend::RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                                      Tensor qkv, Tensor out) {
  PrepareAttention(layer, context);
  cpu::AttentionArgs args;
  args.kv = Geometry();
  args.num_heads = layer.num_heads;
  args.scale = layer.scale;
  args.q = F32(qkv);
  args.q_stride = qkv.cols;
  args.k_pages = KPages(layer.layer);
  args.v_pages = VPages(layer.layer);
  args.cu_q_lens = context.cu_q_lens;
  args.kv_lens = context.kv_lens;
  args.page_indices = context.page_indices;
  args.pages_per_seq = context.pages_per_seq;
  // Columns of a token in an item.
  const size_t cols = static_cast<size_t>(layer.num_heads / layer.num_kv_heads) * layer.v_dim;
  const auto count = static_cast<uint32_t>(items_.size());
  pool_.ParallelFor(count, 1, [&](uint32_t begin, uint32_t end, uint32_t worker) {
    for (uint32_t i = begin; i < end; ++i) {
      const cpu::AttentionItem& item = items_[i];
      kernels_.attention(args, item, scratch_[worker]);
      const float* from = scratch_[worker].out;
      const uint32_t first = context.cu_q_lens[item.seq];
      for (uint32_t t = item.token_begin; t < item.token_end; ++t, from += cols) {
        std::memcpy(F32Row(out, first + t) + item.kv_head * cols, from, cols * sizeof(float));
      }
    }
  });
}

void CpuBackend::SiluMul(Tensor gate_up, Tensor out) {
  ForRows(gate_up.rows, [&](uint32_t begin, uint32_t end) {
    kernels_.silu_mul(F32Row(gate_up, begin), end - begin, out.cols, F32Row(out, begin));
  });
}

void CpuBackend::SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) {
  for (uint32_t i = 0; i < rows.size(); ++i) {
    std::memcpy(F32Row(out, i), F32Row(x, rows[i]), x.cols * sizeof(float));
  }
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace flotilla
