#include "worker_proc/cuda/cuda_backend.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "shm/futex.h"
#include "worker_proc/cuda/cuda_attention.h"
#include "worker_proc/cuda/cuda_experts.h"
#include "worker_proc/cuda/cuda_gather.h"
#include "worker_proc/cuda/cuda_graphs.h"
#include "worker_proc/cuda/cuda_products.h"
#include "worker_proc/cuda/cuda_sampler.h"
#include "worker_proc/cuda/cuda_weights.h"
#include "worker_proc/cuda/graph/step_metadata.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Device> device, const CudaBackendOptions& options)
      : device_(std::move(device)),
        kernels_(device_->kernels()),
        stream_(device_->stream()),
        options_(options),
        name_(StrCat(device_->name(), "-", ElementName(options.dtype), "-kv-",
                     ElementName(options.kv_cache_dtype), options_.batch_invariant ? "" : "-gemv")),
        weights_(device_.get(), options.dtype, options.keep_packed, options.heartbeat),
        products_(device_.get(), options.dtype, options.batch_invariant),
        experts_(device_.get(), options.dtype),
        attention_(device_.get(), options.kv_cache_dtype),
        gather_(
            device_.get(),
            {.epoch = options.epoch, .heartbeat = options.heartbeat, .exchange = options.exchange}),
        graphs_({device_.get(), &attention_, &gather_, [this] { return Finish(); }}, options) {}

  const char* name() const override { return name_.c_str(); }
  BackendMemory memory() const override {
    return {weights_.matrix_bytes() + weights_.other_bytes(), weights_.matrix_bytes(),
            weights_.matrix_bytes(),
            activation_bytes_ + metadata_.bytes() + graphs_.bytes() + attention_.plan_bytes() +
                gather_.bytes() + products_.bytes() + experts_.bytes() +
                (last_tokens_ == nullptr ? 0 : last_tokens_->bytes()) +
                (sampler_ == nullptr ? 0 : sampler_->bytes()),
            attention_.cache_bytes()};
  }

  GraphSteps graph_steps() const override { return graphs_.steps(); }

  uint64_t WeightBytes(const TensorView& view) const override { return weights_.WeightBytes(view); }
  uint64_t EmbeddingBytes(const TensorView& view) const override { return WeightBytes(view); }
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
                                          const ExpertBounds& bounds) override {
    return experts_.NewRoutes(routing, bounds);
  }
  Status Warmup(const StepBounds& bounds) override;
  uint64_t KvPageBytes(const KvCacheShape& shape) const override {
    return attention_.PageBytes(shape);
  }
  Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) override {
    graphs_.Forget();  // they have the old one's addresses
    num_layers_ = shape.num_layers;
    return attention_.Allocate(shape, num_pages);
  }
  void PreparePlan(const PlanShape& /*shape*/) override {}  // all room is for the largest step
  StatusOr<uint64_t> GraphBytes() override { return graphs_.Measure({bounds_, num_layers_}); }
  Status PrepareGraphs(Collective& collective, bool capture) override {
    graphs_.BeginCounting();
    return capture ? graphs_.Prepare({bounds_, num_layers_}, collective) : OkStatus();
  }

  AttentionContext BeginStep(const ForwardBatch& batch) override;
  StatusOr<Tensor> RunForward(const ForwardBatch& batch, const Forward& forward) override;
  void Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
             Tensor out) override;
  void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) override {
    kernels_.rms_norm(NormArgs(x, nullptr, weight, eps, out), stream_);
  }
  void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                  Tensor out) override {
    kernels_.rms_norm(NormArgs(x, Floats(residual), weight, eps, out), stream_);
  }
  void Linear(const LinearWeight& weight, Tensor x, Tensor out) override {
    products_.Linear(static_cast<const CudaLinear&>(weight), x, out);
  }
  void LinearAddRmsNorm(const LinearWeight& weight, Tensor x, const AddNorm& add) override {
    if (!products_.LinearAdd(static_cast<const CudaLinear&>(weight), x, add.residual)) {
      return Backend::LinearAddRmsNorm(weight, x, add);
    }
    const RmsNormArgs norm = NormArgs(add.residual, nullptr, add.weight, add.eps, add.out);
    if (add.for_next_product) return products_.NormForNext(norm);
    kernels_.rms_norm(norm, stream_);
  }
  void RopeAndWriteKv(const HeadRotation& rotation, const AttentionContext& context,
                      Tensor qkv) override {
    kernels_.rope_kv(RopeArgs(rotation, context, qkv), stream_);
  }
  void RotateAndAttend(const HeadRotation& rotation, const AttentionContext& context, Tensor qkv,
                       Tensor out) override;
  void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) override {
    Attend(layer, context, qkv, out, std::nullopt);
  }
  void LinearActMul(const GateUp& gate, Tensor x, Tensor gate_up, Tensor out) override {
    products_.LinearActMul(static_cast<const CudaLinear&>(gate.weight), gate.act, x, gate_up, out);
  }
  void RouteTokens(const LinearWeight& router, Tensor x, ExpertRoutes* routes) override {
    experts_.Route(router, x, routes);
  }
  void ExpertsActMul(const ExpertsGateUp& gate, ExpertRoutes* routes, Tensor x, Tensor /*gate_up*/,
                     Tensor out) override {
    experts_.ActMul(gate, routes, x, out);
  }
  void ExpertsLinear(const ExpertsWeight& weight, ExpertRoutes* routes, Tensor x,
                     Tensor out) override {
    experts_.Linear(weight, routes, x, out);
  }
  void SoftCap(float cap, Tensor x) override {
    kernels_.soft_cap({Floats(x), x.rows, x.cols, cap}, stream_);
  }
  void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) override;
  Status ConnectRanks(Collective& collective) override;
  Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          Tensor out) override {
    return gather_.Run(collective, cols, local, CudaGather::kAllRanks, out);
  }
  Status AllGatherAddRmsNorm(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                             const AddNorm& norm) override {
    const RmsNormArgs args =
        NormArgs(norm.x, Floats(norm.residual), norm.weight, norm.eps, norm.out);
    if (gather_.AddNorm(cols, local, args)) return OkStatus();
    return Backend::AllGatherAddRmsNorm(collective, cols, local, norm);
  }
  Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) override {
    return gather_.Run(collective, cols, local, root, out);
  }
  // The step's ops don't compute on this core, so now is as good as later.
  void WakeSoon(std::atomic<uint32_t>* bell) override {
    bell->fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(bell);
  }
  Status Finish() override {
    RETURN_IF_ERROR(attention_.TakeError());
    gather_.Wait();
    RETURN_IF_ERROR(device_->Synchronize());
    return gather_.TakeError();
  }
  Status TakeError() override {
    RETURN_IF_ERROR(attention_.TakeError());
    return device_->Error();
  }
  Status LostExchange() override { return gather_.TakeError(); }
  bool exchanges_are_queued() const override { return gather_.is_queued(); }
  StatusOr<DeviceSampler*> MakeSampler(const SamplerSpec& spec) override;
  StatusOr<DeviceSampler*> FollowSampler(uint32_t num_slots) override;
  StatusOr<std::span<float>> ReadLogits(Tensor logits) override;

 private:
  Element ElementOf(TensorUse use) const {
    const bool wide = use == TensorUse::kHidden || use == TensorUse::kLogits;
    return wide ? Element::kFloat32 : options_.dtype;
  }
  // The two largest activations.
  CudaGather::Room RoomBetweenSteps() const;
  uint32_t max_pages_per_seq() const { return CeilDiv(bounds_.max_positions, bounds_.page_size); }
  RopeKvArgs RopeArgs(const HeadRotation& rotation, const AttentionContext& context,
                      Tensor qkv) const;
  void Attend(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv, Tensor out,
              const std::optional<RopeKvArgs>& rope);
  static RmsNormArgs NormArgs(Tensor x, float* residual, const VectorWeight& weight, float eps,
                              Tensor out);

  const std::unique_ptr<Device> device_;
  const KernelTable& kernels_;
  const Stream stream_;
  const CudaBackendOptions options_;
  const std::string name_;
  WeightStore weights_;
  CudaProducts products_;
  CudaExperts experts_;
  DeviceBuffer metadata_;  // of a step that the graph runner does not run
  std::vector<std::byte> packed_metadata_;
  CudaAttention attention_;
  CudaGather gather_;
  uint64_t largest_gather_ = 0;     // bytes
  std::deque<CudaTensor> tensors_;  // what Tensor::data points to
  std::vector<DeviceBuffer> activations_;
  uint64_t activation_bytes_ = 0;
  // Of SelectRows. Decodes have the same in each step, and a copy keeps the kernel behind it from
  // beginning early.
  DeviceBuffer row_indices_;
  std::vector<uint32_t> selected_;
  std::vector<float> host_logits_;
  std::unique_ptr<LastTokens> last_tokens_;  // before what refers to them
  std::unique_ptr<CudaSampler> sampler_;     // rank 0's
  std::unique_ptr<FollowingSampler> follower_;

  StepBounds bounds_;
  uint32_t num_layers_ = 0;
  CudaGraphs graphs_;
};

// ---- Start ------------------------------------------------------------------------------------

StatusOr<Tensor> CudaBackend::NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) {
  const Element type = ElementOf(use);
  const bool is_fused = use == TensorUse::kExpertsGateUp;
  const uint64_t bytes = is_fused ? 0 : uint64_t{max_rows} * cols * ElementBytes(type);
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_->Allocate(bytes));
  activation_bytes_ += bytes;
  tensors_.push_back({buffer.data(), type});
  activations_.push_back(std::move(buffer));
  if (use == TensorUse::kLogits) MakeRoom(uint64_t{max_rows} * cols, &host_logits_);
  return Tensor{&tensors_.back(), max_rows, cols};
}

StatusOr<Tensor> CudaBackend::NewShard(TensorUse use, uint32_t max_rows,
                                       std::span<const uint32_t> cols, uint32_t rank) {
  const uint64_t full = std::accumulate(cols.begin(), cols.end(), uint64_t{0});
  largest_gather_ = std::max(largest_gather_, max_rows * full * ElementBytes(ElementOf(use)));
  return NewTensor(use, max_rows, cols[rank]);
}

Status CudaBackend::Warmup(const StepBounds& bounds) {
  bounds_ = bounds;
  const size_t metadata_bytes =
      MetadataLayout({bounds.max_tokens, bounds.max_seqs}, max_pages_per_seq()).bytes;
  ASSIGN_OR_RETURN(metadata_, device_->Allocate(metadata_bytes));
  packed_metadata_.reserve(metadata_bytes);
  ASSIGN_OR_RETURN(row_indices_, device_->Allocate(uint64_t{bounds.max_tokens} * sizeof(uint32_t)));
  selected_.clear();
  selected_.reserve(bounds.max_tokens);
  if (largest_gather_ > 0) {
    RETURN_IF_ERROR(
        gather_.Reserve(std::max(largest_gather_, LastTokens::BytesOf(bounds.max_seqs))));
  }
  attention_.Warmup(bounds);
  return device_->Synchronize();
}

// ---- A step -----------------------------------------------------------------------------------

CudaGather::Room CudaBackend::RoomBetweenSteps() const {
  CudaGather::Room room;
  for (const DeviceBuffer& buffer : activations_) {
    std::span<std::byte> bytes(buffer.data(), buffer.bytes());
    if (bytes.size() > room.whole.size()) std::swap(bytes, room.whole);
    if (bytes.size() > room.local.size()) std::swap(bytes, room.local);
  }
  return room;
}

Status CudaBackend::ConnectRanks(Collective& collective) {
  RETURN_IF_ERROR(gather_.Connect(collective, RoomBetweenSteps()));
  return graphs_.ConnectRanks(collective);
}

AttentionContext CudaBackend::BeginStep(const ForwardBatch& batch) {
  attention_.BeginStep(&batch);
  const MetadataLayout layout({batch.num_tokens, batch.num_seqs}, batch.pages_per_seq);
  CHECK(layout.bytes <= metadata_.bytes());
  packed_metadata_.resize(layout.bytes);
  const size_t bytes = PackMetadata(batch, layout, packed_metadata_.data());
  device_->Upload(packed_metadata_.data(), bytes, metadata_.data());
  return layout.At(metadata_.data());
}

StatusOr<Tensor> CudaBackend::RunForward(const ForwardBatch& batch, const Forward& forward) {
  if (graphs_.any()) return graphs_.Run(batch, forward);
  graphs_.CountEager(forward);
  return forward(BeginStep(batch));
}

// Between the pieces of a graph it is launched in each step, by what that step needs.
void CudaBackend::Attend(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv,
                         Tensor out, const std::optional<RopeKvArgs>& rope) {
  if (!graphs_.cuts()) return attention_.Attend(layer, context, qkv, out, rope);
  graphs_.Cut([this, layer, qkv, out, rope](const AttentionContext& step) {
    attention_.Attend(layer, step, qkv, out, rope);
    return attention_.TakeError();
  });
}

void CudaBackend::Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
                        Tensor out) {
  const auto& w = static_cast<const CudaEmbedding&>(weight);
  const EmbeddingArgs args = {w.matrix->buffer.data(),
                              options_.dtype,
                              context.input_ids,
                              context.num_tokens,
                              out.cols,
                              scale,
                              Floats(out),
                              last_tokens_ == nullptr ? nullptr : last_tokens_->data()};
  const std::vector<PackedRows>& packed = w.matrix->packed;
  if (packed.empty()) return kernels_.embedding(args, stream_);
  kernels_.packed_embedding({args, packed[0].dtype}, stream_);
}

RmsNormArgs CudaBackend::NormArgs(Tensor x, float* residual, const VectorWeight& weight, float eps,
                                  Tensor out) {
  const auto& w = static_cast<const CudaVector&>(weight);
  return {Floats(x), residual,   w.values.as<const float>(), eps, x.rows, x.cols,
          Data(out), TypeOf(out)};
}

RopeKvArgs CudaBackend::RopeArgs(const HeadRotation& rotation, const AttentionContext& context,
                                 Tensor qkv) const {
  RopeKvArgs args;
  args.qkv = Floats(qkv);
  args.tokens = context.num_tokens;
  args.positions = context.positions;
  args.slot_mapping = context.slot_mapping;
  if (rotation.norms != nullptr) {
    args.q_norm = static_cast<const CudaVector&>(rotation.norms->q).values.as<const float>();
    args.k_norm = static_cast<const CudaVector&>(rotation.norms->k).values.as<const float>();
    args.eps = rotation.norms->eps;
  }
  return attention_.RopeArgs(rotation.rope, rotation.layer, args);
}

void CudaBackend::RotateAndAttend(const HeadRotation& rotation, const AttentionContext& context,
                                  Tensor qkv, Tensor out) {
  const RopeKvArgs rope = RopeArgs(rotation, context, qkv);
  if (!CanRotate(rope, TypeOf(out))) {
    return Backend::RotateAndAttend(rotation, context, qkv, out);
  }
  Attend(rotation.layer, context, qkv, out, rope);
}

void CudaBackend::SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) {
  CHECK(rows.size_bytes() <= row_indices_.bytes() && TypeOf(x) == TypeOf(out));
  if (!std::equal(rows.begin(), rows.end(), selected_.begin(), selected_.end())) {
    selected_.assign(rows.begin(), rows.end());
    device_->UploadAll(selected_, row_indices_);
  }
  kernels_.select_rows(
      {Data(x), row_indices_.as<const uint32_t>(), out.rows, RowBytes(x), Data(out)}, stream_);
}

StatusOr<DeviceSampler*> CudaBackend::MakeSampler(const SamplerSpec& spec) {
  if (spec.vocab_size > kMaxSampleVocab) return nullptr;
  ASSIGN_OR_RETURN(last_tokens_, LastTokens::Create(device_.get(), &gather_, spec.num_slots));
  ASSIGN_OR_RETURN(sampler_, CudaSampler::Create(device_.get(), last_tokens_.get(), spec.max_rows,
                                                 spec.vocab_size, spec.eos_ids));
  return sampler_.get();
}

StatusOr<DeviceSampler*> CudaBackend::FollowSampler(uint32_t num_slots) {
  ASSIGN_OR_RETURN(last_tokens_, LastTokens::Create(device_.get(), &gather_, num_slots));
  ASSIGN_OR_RETURN(follower_, FollowingSampler::Create(device_.get(), last_tokens_.get()));
  return follower_.get();
}

StatusOr<std::span<float>> CudaBackend::ReadLogits(Tensor logits) {
  gather_.Wait();
  host_logits_.resize(uint64_t{logits.rows} * logits.cols);
  device_->Download(Data(logits), host_logits_.size() * sizeof(float), host_logits_.data());
  RETURN_IF_ERROR(Finish());
  return std::span<float>(host_logits_);
}

}  // namespace

const char* ElementName(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kFloat16:
      return "float16";
  }
  return "unknown";
}

std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device,
                                         const CudaBackendOptions& options) {
  return std::make_unique<CudaBackend>(std::move(device), options);
}

}  // namespace flotilla::cuda
