#include "worker_proc/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_experts.h"
#include "worker_proc/cpu/cpu_gather.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/cpu_weights.h"
#include "worker_proc/cpu/paged_attention.h"
#include "worker_proc/cpu/quant_pack.h"

namespace flotilla {
namespace {

using cpu::CpuLinear;
using cpu::F32;
using cpu::F32Row;
using cpu::kQuantBlock;
using cpu::Q8;
using cpu::Q8Row;

constexpr size_t kActivationChunk = size_t{2} << 20;

std::string Name(const CpuBackendOptions& options) {
  const char* const kv = options.kv_cache_dtype == cpu::KvType::kInt8       ? "int8"
                         : options.kv_cache_dtype == cpu::KvType::kBFloat16 ? "bfloat16"
                                                                            : "float32";
  return StrCat("cpu-", cpu::ComputeTypeName(options.dtype), "-kv-", kv);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : kernels_(*options.kernels),
        quant_(*options.quant_kernels),
        name_(Name(options)),
        heartbeat_(options.heartbeat),
        pool_(options.threads),
        products_(kernels_, quant_, &pool_),
        experts_(&pool_, &products_),
        weights_(options.dtype, &pool_, options.heartbeat, options.pack_cache),
        activations_("activations", kActivationChunk),
        attention_(kernels_, quant_, options.kv_cache_dtype, &pool_) {}

  const char* name() const override { return name_.c_str(); }
  BackendMemory memory() const override {
    return {weights_.matrix_bytes() + weights_.other_bytes(), weights_.matrix_bytes(),
            weights_.packed_bytes(), activations_.bytes(), attention_.cache_bytes()};
  }

  uint64_t WeightBytes(const TensorView& view) const override { return weights_.WeightBytes(view); }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) override {
    return weights_.LoadLinear(rows);
  }
  StatusOr<std::unique_ptr<ExpertsWeight>> LoadExperts(
      std::span<const std::vector<WeightRows>> experts) override {
    return weights_.LoadExperts(experts);
  }
  StatusOr<std::unique_ptr<LinearWeight>> LoadRouter(const TensorView& view) override {
    return weights_.LoadRouter(view);
  }
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view,
                                                     const VectorChange& change) override {
    return weights_.LoadVector(view, change);
  }
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) override {
    return weights_.LoadEmbedding(view);
  }
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) override {
    return weights_.MakeRope(spec);
  }
  StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) override;
  StatusOr<Tensor> NewShard(TensorUse use, uint32_t max_rows, std::span<const uint32_t> cols,
                            uint32_t rank) override;
  StatusOr<ExpertRoutes*> NewExpertRoutes(const ExpertRouting& routing,
                                          const ExpertBounds& bounds) override;
  Status Warmup(const StepBounds& bounds) override;
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return attention_.PageBytes(shape);
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override {
    return attention_.Allocate(shape, num_pages, heartbeat_);
  }
  void PreparePlan(const PlanShape& shape) override { attention_.PreparePlan(shape); }

  AttentionContext BeginStep(const ForwardBatch& batch) override;
  void Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
             Tensor out) override;
  void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) override {
    Norm(x, nullptr, weight, eps, out);
  }
  void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                  Tensor out) override {
    Norm(x, &residual, weight, eps, out);
  }
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override {
    products_.Linear(static_cast<const CpuLinear&>(weight), x, out);
  }
  void RopeAndWriteKv(const HeadRotation& rotation, const AttentionContext& context,
                      Tensor qkv) override;
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override {
    attention_.Attend(layer, context, qkv, out);
  }
  void LinearActMul(const GateUp& gate, Tensor x, Tensor gate_up, Tensor out) override {
    products_.LinearActMul(static_cast<const CpuLinear&>(gate.weight), gate.act, x, gate_up, out);
  }
  void RouteTokens(const LinearWeight& router, Tensor x, ExpertRoutes* routes) override {
    experts_.Route(static_cast<const CpuLinear&>(router), x, Get(routes));
  }
  void ExpertsActMul(const ExpertsGateUp& gate, ExpertRoutes* routes, Tensor x, Tensor gate_up,
                     Tensor out) override {
    experts_.ActMul(static_cast<const cpu::CpuExperts&>(gate.weight), gate.act, Get(routes), x,
                    gate_up, out);
  }
  void ExpertsLinear(const ExpertsWeight& weight, ExpertRoutes* routes, Tensor x,
                     Tensor out) override {
    experts_.Linear(static_cast<const cpu::CpuExperts&>(weight), Get(routes), x, out);
  }
  void SoftCap(float cap, Tensor x) override;
  void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) override;
  Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          Tensor out) override {
    return gather_->Run(collective, cols, local, cpu::ColumnGather::kAllRanks, out);
  }
  Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) override {
    return gather_->Run(collective, cols, local, root, out);
  }
  void WakeSoon(std::atomic<uint32_t>* bell) override { pool_.WakeSoon(bell); }
  Status Finish() override { return OkStatus(); }
  StatusOr<std::span<float>> ReadLogits(Tensor logits) override {
    return std::span<float>(F32(logits), static_cast<size_t>(logits.rows) * logits.cols);
  }

 private:
  static cpu::CpuRoutes* Get(ExpertRoutes* routes) { return static_cast<cpu::CpuRoutes*>(routes); }
  StatusOr<Tensor> MakeTensor(uint32_t max_rows, uint32_t cols, bool f32, bool q8);
  // rows [begin, end) of tensor.f32 → tensor.q8, if it has both.
  void QuantizeRows(Tensor tensor, uint32_t begin, uint32_t end) {
    if (Q8(tensor) == nullptr) return;
    quant_.quantize(F32Row(tensor, begin), end - begin, tensor.cols, Q8Row(tensor, begin));
  }
  void Norm(Tensor x, const Tensor* residual, const VectorWeight& weight, float eps, Tensor out);
  // Of one token's row of qkv.
  void NormHeads(const AttentionLayer& layer, const HeadNorms& norms, float* q) const;
  template <typename F>
  void ForRows(uint32_t rows, const F& f) {
    products_.ForRows(rows, f);
  }

  const cpu::KernelTable& kernels_;
  const cpu::QuantKernelTable& quant_;
  const std::string name_;
  const Heartbeat heartbeat_;
  cpu::ThreadPool pool_;
  cpu::CpuProducts products_;
  cpu::ExpertRunner experts_;
  cpu::WeightStore weights_;
  cpu::Arena activations_;
  std::deque<cpu::CpuTensor> tensors_;  // what Tensor::data points to
  size_t largest_gather_ = 0;           // bytes
  std::vector<std::unique_ptr<cpu::CpuRoutes>> routes_;
  std::optional<cpu::ColumnGather> gather_;
  cpu::PagedAttention attention_;
};

// ---- Start ------------------------------------------------------------------------------------

StatusOr<Tensor> CpuBackend::MakeTensor(uint32_t max_rows, uint32_t cols, bool f32, bool q8) {
  const size_t values = static_cast<size_t>(max_rows) * cols;
  cpu::CpuTensor tensor;
  if (f32) {
    ASSIGN_OR_RETURN(std::byte * memory, activations_.Allocate(values * sizeof(float)));
    tensor.f32 = reinterpret_cast<float*>(memory);
  }
  if (q8) {
    ASSIGN_OR_RETURN(std::byte * memory,
                     activations_.Allocate(values / kQuantBlock * sizeof(cpu::ActBlock)));
    tensor.q8 = reinterpret_cast<cpu::ActBlock*>(memory);
    products_.Expect(max_rows, cols, !routes_.empty());
  }
  tensors_.push_back(tensor);
  return Tensor{&tensors_.back(), max_rows, cols};
}

StatusOr<Tensor> CpuBackend::NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) {
  if (use == TensorUse::kGateUp || use == TensorUse::kExpertsGateUp) {
    return MakeTensor(max_rows, cols, weights_.has_float() || weights_.has_split(), false);
  }
  const bool for_router = use == TensorUse::kRouterInput;
  const bool q8 = (use == TensorUse::kLinearInput || for_router) && weights_.has_quant() &&
                  cols % kQuantBlock == 0;
  return MakeTensor(max_rows, cols, !q8 || weights_.has_float() || for_router, q8);
}

StatusOr<ExpertRoutes*> CpuBackend::NewExpertRoutes(const ExpertRouting& routing,
                                                    const ExpertBounds& bounds) {
  ASSIGN_OR_RETURN(const Tensor logits,
                   NewTensor(TensorUse::kLogits, bounds.tokens, routing.num_experts));
  ASSIGN_OR_RETURN(const Tensor x, NewTensor(TensorUse::kLinearInput, bounds.tokens * routing.top_k,
                                             bounds.in_features));
  products_.Expect(x.rows, x.cols, true);
  ASSIGN_OR_RETURN(auto routes, experts_.NewRoutes(routing, logits, x, &activations_));
  routes_.push_back(std::move(routes));
  return routes_.back().get();
}

// Ranks must agree on what travels, so all of them look at everyone's columns.
StatusOr<Tensor> CpuBackend::NewShard(TensorUse use, uint32_t max_rows,
                                      std::span<const uint32_t> cols, uint32_t rank) {
  const bool whole_blocks =
      std::all_of(cols.begin(), cols.end(), [](uint32_t c) { return c % kQuantBlock == 0; });
  const bool q8 = use == TensorUse::kLinearInput && weights_.has_quant() && !weights_.has_float() &&
                  whole_blocks;
  const size_t full = std::accumulate(cols.begin(), cols.end(), size_t{0});
  largest_gather_ = std::max(largest_gather_, max_rows * full * sizeof(float));
  return MakeTensor(max_rows, cols[rank], !q8, q8);
}

Status CpuBackend::Warmup(const StepBounds& bounds) {
  weights_.Finish();
  ASSIGN_OR_RETURN(std::byte * staging, activations_.Allocate(largest_gather_));
  gather_.emplace(&pool_, &quant_, staging);
  RETURN_IF_ERROR(products_.Warmup(&activations_));
  RETURN_IF_ERROR(attention_.Warmup(&activations_, bounds.max_positions));
  activations_.Touch(&pool_, heartbeat_);
  return OkStatus();
}

// ---- A step -----------------------------------------------------------------------------------

AttentionContext CpuBackend::BeginStep(const ForwardBatch& batch) {
  attention_.BeginStep();
  return {batch.num_tokens,           batch.num_seqs,
          batch.input_ids.data(),     batch.positions.data(),
          batch.out_cache_loc.data(), batch.cu_q_lens.data(),
          batch.kv_lens.data(),       batch.page_indices.data(),
          batch.pages_per_seq};
}

void CpuBackend::Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
                       Tensor out) {
  const auto& w = static_cast<const cpu::CpuEmbedding&>(weight);
  ForRows(context.num_tokens, [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; ++t) {
      const auto id = static_cast<uint64_t>(context.input_ids[t]);
      float* const row = F32Row(out, t);
      if (w.packed != nullptr) {
        cpu::UnpackQuantRow(w.format, w.packed, w.cols, id, row);
      } else {
        DequantizeRows(*w.view, id, id + 1, row);
      }
      if (scale == 1) continue;
      for (uint32_t i = 0; i < out.cols; ++i) row[i] *= scale;
    }
  });
}

void CpuBackend::Norm(Tensor x, const Tensor* residual, const VectorWeight& weight, float eps,
                      Tensor out) {
  const float* w = static_cast<const cpu::CpuVector&>(weight).values.data();
  ForRows(x.rows, [&](uint32_t begin, uint32_t end) {
    float* const to = residual ? F32Row(*residual, begin) : nullptr;
    if (F32(out) == nullptr) {
      quant_.rms_norm({F32Row(x, begin), to, w, eps, end - begin, x.cols, Q8Row(out, begin)});
      return;
    }
    kernels_.rms_norm({F32Row(x, begin), to, w, eps, end - begin, x.cols, F32Row(out, begin)});
    QuantizeRows(out, begin, end);
  });
}

void CpuBackend::SoftCap(float cap, Tensor x) {
  pool_.ParallelFor(x.rows, 1, [&](uint32_t begin, uint32_t end, uint32_t) {
    kernels_.soft_cap(F32Row(x, begin), static_cast<size_t>(end - begin) * x.cols, cap);
  });
}

void CpuBackend::NormHeads(const AttentionLayer& layer, const HeadNorms& norms, float* q) const {
  const float* const q_weight = static_cast<const cpu::CpuVector&>(norms.q).values.data();
  const float* const k_weight = static_cast<const cpu::CpuVector&>(norms.k).values.data();
  float* const k = q + static_cast<size_t>(layer.num_heads) * layer.qk_dim;
  kernels_.rms_norm({q, nullptr, q_weight, norms.eps, layer.num_heads, layer.qk_dim, q});
  kernels_.rms_norm({k, nullptr, k_weight, norms.eps, layer.num_kv_heads, layer.qk_dim, k});
}

void CpuBackend::RopeAndWriteKv(const HeadRotation& rotation, const AttentionContext& context,
                                Tensor qkv) {
  const RopeTable& rope = rotation.rope;
  const AttentionLayer& layer = rotation.layer;
  const float* table = static_cast<const cpu::CpuRope&>(rope).table.data();
  ForRows(context.num_tokens, [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end && rotation.norms != nullptr; ++t) {
      NormHeads(layer, *rotation.norms, F32Row(qkv, t));
    }
    // q and k heads lie side by side: one pass rotates both.
    kernels_.rope({F32Row(qkv, begin), qkv.cols, context.positions + begin, end - begin,
                   layer.num_heads + layer.num_kv_heads, layer.qk_dim, rope.spec.dim,
                   rope.spec.interleaved, table});
    if (layer.writes_kv) attention_.Write(layer, context, qkv, begin, end);
  });
}

void CpuBackend::SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) {
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (F32(out) != nullptr) {
      std::memcpy(F32Row(out, i), F32Row(x, rows[i]), x.cols * sizeof(float));
    }
    if (Q8(out) != nullptr) {
      std::memcpy(Q8Row(out, i), Q8Row(x, rows[i]), x.cols / kQuantBlock * sizeof(cpu::ActBlock));
    }
  }
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace flotilla
