// A Backend that adds up how long each op of another one takes, for synchronous backends.
//
// Threads: as Backend. Ownership: `inner` outlives it. Errors: the inner one's.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "worker_proc/model/backend.h"

namespace flotilla::bench {

enum class Op : size_t { kEmbed, kNorm, kLinear, kGateUp, kRope, kAttention, kSelect, kGather };
inline constexpr std::array<const char*, 8> kOpNames = {"embed",   "norm",      "linear", "gate_up",
                                                        "rope+kv", "attention", "select", "gather"};

class TimedBackend final : public Backend {
 private:
  template <typename F>
  auto Timed(Op op, const F& f) {
    struct Timer {
      double& seconds;
      const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Timer() {
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    } timer{seconds_[static_cast<size_t>(op)]};
    return f();
  }

 public:
  explicit TimedBackend(Backend* inner) : inner_(*inner) {}

  // Since the last call, by op.
  std::array<double, kOpNames.size()> TakeSeconds() { return std::exchange(seconds_, {}); }

  const char* name() const override { return inner_.name(); }
  BackendMemory memory() const override { return inner_.memory(); }
  uint64_t WeightBytes(const TensorView& view) const override { return inner_.WeightBytes(view); }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) override {
    return inner_.LoadLinear(rows);
  }
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view,
                                                     float offset) override {
    return inner_.LoadVector(view, offset);
  }
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) override {
    return inner_.LoadEmbedding(view);
  }
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) override {
    return inner_.MakeRope(spec);
  }
  StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) override {
    return inner_.NewTensor(use, max_rows, cols);
  }
  StatusOr<Tensor> NewShard(TensorUse use, uint32_t max_rows, std::span<const uint32_t> cols,
                            uint32_t rank) override {
    return inner_.NewShard(use, max_rows, cols, rank);
  }
  Status Warmup(const StepBounds& bounds) override { return inner_.Warmup(bounds); }
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return inner_.KvPageBytes(shape);
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override {
    return inner_.AllocateKvCache(shape, num_pages);
  }
  AttentionContext BeginStep(const ForwardBatch& batch) override { return inner_.BeginStep(batch); }
  void Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
             Tensor out) override {
    Timed(Op::kEmbed, [&] { inner_.Embed(weight, context, scale, out); });
  }
  void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) override {
    Timed(Op::kNorm, [&] { inner_.RmsNorm(x, weight, eps, out); });
  }
  void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                  Tensor out) override {
    Timed(Op::kNorm, [&] { inner_.AddRmsNorm(x, residual, weight, eps, out); });
  }
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override {
    Timed(Op::kLinear, [&] { inner_.Linear(weight, x, out); });
  }
  void NormHeads(const AttentionLayer& layer, const HeadNorms& norms, Tensor qkv) override {
    Timed(Op::kNorm, [&] { inner_.NormHeads(layer, norms, qkv); });
  }
  void RopeAndWriteKv(const RopeTable& rope, const AttentionLayer& layer,
                      const AttentionContext& context, Tensor qkv) override {
    Timed(Op::kRope, [&] { inner_.RopeAndWriteKv(rope, layer, context, qkv); });
  }
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override {
    Timed(Op::kAttention, [&] { inner_.RaggedPagedAttention(layer, context, qkv, out); });
  }
  void LinearActMul(const GateUp& gate, Tensor x, Tensor gate_up, Tensor out) override {
    Timed(Op::kGateUp, [&] { inner_.LinearActMul(gate, x, gate_up, out); });
  }
  void SoftCap(float cap, Tensor x) override {
    Timed(Op::kLinear, [&] { inner_.SoftCap(cap, x); });
  }
  void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) override {
    Timed(Op::kSelect, [&] { inner_.SelectRows(x, rows, out); });
  }
  Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          Tensor out) override {
    return Timed(Op::kGather,
                 [&] { return inner_.AllGatherColumns(collective, cols, local, out); });
  }
  Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) override {
    return Timed(Op::kGather,
                 [&] { return inner_.GatherColumns(collective, cols, local, root, out); });
  }
  void WakeSoon(std::atomic<uint32_t>* bell) override { inner_.WakeSoon(bell); }
  Status Finish() override { return inner_.Finish(); }
  StatusOr<std::span<float>> ReadLogits(Tensor logits) override {
    return inner_.ReadLogits(logits);
  }

 private:
  Backend& inner_;
  std::array<double, kOpNames.size()> seconds_{};
};

}  // namespace flotilla::bench
