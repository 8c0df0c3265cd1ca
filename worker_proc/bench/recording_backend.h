// A Backend that notes what a model asks of another one: which weights it loads, how long each op
// takes, and, while it records, the ops themselves. So `flotilla bench roofline` can run each op
// alone, over all layers' weights, without knowing the model.
//
// Units: seconds, bytes. Threads: as Backend; `inner` is synchronous. Ownership: `inner` outlives
// it; recorded ops point to the model's weights and buffers. Errors: the inner one's.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_proc/model/backend.h"

namespace flotilla::bench {

enum class Op : size_t {
  kEmbed,
  kNorm,
  kLinear,
  kGateUp,
  kRoute,
  kExperts,
  kRope,
  kAttention,
  kSelect,
  kGather
};
inline constexpr std::array<const char*, 10> kOpNames = {
    "embed",   "norm",    "linear",    "gate_up", "route",
    "experts", "rope+kv", "attention", "select",  "gather"};

// One op as the model called it: enough to call it again, with as many rows as its tensors have.
struct RecordedOp {
  Op op = Op::kLinear;
  const LinearWeight* linear = nullptr;
  const ExpertsWeight* experts = nullptr;
  uint32_t top_k = 0;                // of experts
  HiddenAct act = HiddenAct::kSilu;  // of kGateUp
  const VectorWeight* norm = nullptr;
  const RopeTable* rope = nullptr;
  AttentionLayer layer = {};
  float eps = 0;
  Tensor x = {}, out = {}, other = {};  // other: the residual, or LinearActMul's workspace
};

// What a matrix was made of.
struct MatrixSource {
  std::string label;   // "q+k+v": the file's tensors
  std::string dtype;   // "Q4_1", "Q4_K+Q6_K"
  uint64_t bytes = 0;  // as it lies in memory
};

class RecordingBackend final : public Backend {
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
  explicit RecordingBackend(Backend* inner) : inner_(*inner) {}

  void Record() { recording_ = true; }
  std::vector<RecordedOp> TakeOps() {
    recording_ = false;
    return std::exchange(ops_, {});
  }
  // Of a matrix that was loaded through this.
  const MatrixSource& SourceOf(const LinearWeight* weight) const { return sources_.at(weight); }
  uint64_t BytesOf(const ExpertsWeight* weight) const { return expert_bytes_.at(weight); }
  // Rows that a tensor has room for, however many the op used.
  uint32_t MaxRows(const Tensor& tensor) const { return max_rows_.at(tensor.data); }

  // Since the last call, by op.
  std::array<double, kOpNames.size()> TakeSeconds() { return std::exchange(seconds_, {}); }

  const char* name() const override { return inner_.name(); }
  BackendMemory memory() const override { return inner_.memory(); }
  uint64_t WeightBytes(const TensorView& view) const override { return inner_.WeightBytes(view); }
  uint64_t EmbeddingBytes(const TensorView& view) const override {
    return inner_.EmbeddingBytes(view);
  }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) override {
    const uint64_t before = inner_.memory().step_weights;
    auto weight = inner_.LoadLinear(rows);
    if (weight.ok()) {
      sources_[weight->get()] = Describe(rows, inner_.memory().step_weights - before);
    }
    return weight;
  }
  StatusOr<std::unique_ptr<ExpertsWeight>> LoadExperts(
      std::span<const std::vector<WeightRows>> experts) override {
    const uint64_t before = inner_.memory().step_weights;
    auto weight = inner_.LoadExperts(experts);
    if (weight.ok()) expert_bytes_[weight->get()] = inner_.memory().step_weights - before;
    return weight;
  }
  StatusOr<std::unique_ptr<LinearWeight>> LoadRouter(const TensorView& view) override {
    return inner_.LoadRouter(view);
  }
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view,
                                                     const VectorChange& change) override {
    return inner_.LoadVector(view, change);
  }
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) override {
    return inner_.LoadEmbedding(view);
  }
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) override {
    return inner_.MakeRope(spec);
  }
  StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) override {
    return Note(inner_.NewTensor(use, max_rows, cols));
  }
  StatusOr<Tensor> NewShard(TensorUse use, uint32_t max_rows, std::span<const uint32_t> cols,
                            uint32_t rank) override {
    return Note(inner_.NewShard(use, max_rows, cols, rank));
  }
  StatusOr<ExpertRoutes*> NewExpertRoutes(const ExpertRouting& routing,
                                          const ExpertBounds& bounds) override {
    return inner_.NewExpertRoutes(routing, bounds);
  }
  Status Warmup(const StepBounds& bounds) override { return inner_.Warmup(bounds); }
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return inner_.KvPageBytes(shape);
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override {
    return inner_.AllocateKvCache(shape, num_pages);
  }
  void PreparePlan(const PlanShape& shape) override { inner_.PreparePlan(shape); }
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
    Add({.op = Op::kNorm, .norm = &weight, .eps = eps, .x = x, .out = out, .other = residual});
    Timed(Op::kNorm, [&] { inner_.AddRmsNorm(x, residual, weight, eps, out); });
  }
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override {
    Add({.op = Op::kLinear, .linear = &weight, .x = x, .out = out});
    Timed(Op::kLinear, [&] { inner_.Linear(weight, x, out); });
  }
  void RopeAndWriteKv(const HeadRotation& rotation, const AttentionContext& context,
                      Tensor qkv) override {
    Add({.op = Op::kRope, .rope = &rotation.rope, .layer = rotation.layer, .x = qkv});
    Timed(Op::kRope, [&] { inner_.RopeAndWriteKv(rotation, context, qkv); });
  }
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override {
    Add({.op = Op::kAttention, .layer = layer, .x = qkv, .out = out});
    Timed(Op::kAttention, [&] { inner_.RaggedPagedAttention(layer, context, qkv, out); });
  }
  void LinearActMul(const GateUp& gate, Tensor x, Tensor gate_up, Tensor out) override {
    Add({.op = Op::kGateUp,
         .linear = &gate.weight,
         .act = gate.act,
         .x = x,
         .out = out,
         .other = gate_up});
    Timed(Op::kGateUp, [&] { inner_.LinearActMul(gate, x, gate_up, out); });
  }
  void RouteTokens(const LinearWeight& router, Tensor x, ExpertRoutes* routes) override {
    Timed(Op::kRoute, [&] { inner_.RouteTokens(router, x, routes); });
  }
  void ExpertsActMul(const ExpertsGateUp& gate, ExpertRoutes* routes, Tensor x, Tensor gate_up,
                     Tensor out) override {
    Add({.op = Op::kExperts, .experts = &gate.weight, .top_k = routes->routing.top_k});
    Timed(Op::kExperts, [&] { inner_.ExpertsActMul(gate, routes, x, gate_up, out); });
  }
  void ExpertsLinear(const ExpertsWeight& weight, ExpertRoutes* routes, Tensor x,
                     Tensor out) override {
    Add({.op = Op::kExperts, .experts = &weight, .top_k = routes->routing.top_k});
    Timed(Op::kExperts, [&] { inner_.ExpertsLinear(weight, routes, x, out); });
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
  void Add(const RecordedOp& op) {
    if (recording_) ops_.push_back(op);
  }
  StatusOr<Tensor> Note(StatusOr<Tensor> tensor) {
    if (tensor.ok()) max_rows_[tensor->data] = tensor->rows;
    return tensor;
  }
  static MatrixSource Describe(std::span<const WeightRows> rows, uint64_t bytes);

  Backend& inner_;
  bool recording_ = false;
  std::vector<RecordedOp> ops_;
  std::map<const LinearWeight*, MatrixSource> sources_;
  std::map<const ExpertsWeight*, uint64_t> expert_bytes_;
  std::map<const void*, uint32_t> max_rows_;
  std::array<double, kOpNames.size()> seconds_{};
};

}  // namespace flotilla::bench
