// What a device offers to models: memory, weights, a paged KV cache and the ops a transformer is
// made of. Models (llama.h …) are written once over this; cpu/ implements it in float and with
// integer kernels, a later part brings CUDA behind the same interface.
//
// Shapes: activations are row-major [tokens, columns]. What an element is belongs to the backend
// and the tensor's use; only logits are float for everyone. Ops work on the first `x.rows` rows,
// never allocate, and may run asynchronously; Finish() waits for them and returns their first
// error. Determinism: an op's result for a row depends on that row only, bit for bit.
//
// Threads: one. Ownership: the backend owns tensors and KV cache; weights belong to their holder
// and must not outlive the backend. Errors: Status from what allocates or talks to other ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "shm/collective.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla {

// A view into the backend's memory. `data` is opaque to models.
struct Tensor {
  void* data = nullptr;
  uint32_t rows = 0;
  uint32_t cols = 0;

  Tensor First(uint32_t n) const { return {data, n, cols}; }
};

enum class TensorUse : uint32_t {
  kHidden,         // residual stream and outputs of Linear
  kLinearInput,    // written by norms, LinearActMul, attention; read only by Linear and gathers
  kRouterInput,    // kLinearInput that RouteTokens reads, too
  kGateUp,         // workspace of LinearActMul; may have no memory where that op is fused
  kExpertsGateUp,  // the same of ExpertsActMul
  kLogits,         // float, readable through ReadLogits
};

// Weights as the backend stores them. A LinearWeight may have a bias.
struct LinearWeight {
  virtual ~LinearWeight() = default;
  uint32_t in_features = 0;
  uint32_t out_features = 0;
};
// What is done to each value of a vector when it is loaded.
struct VectorChange {
  float offset = 0;
  float factor = 1;
  float Of(float value) const { return (value + offset) * factor; }
};
struct VectorWeight {
  virtual ~VectorWeight() = default;
  uint32_t size = 0;
};
// One matrix for each expert, all of one shape.
struct ExpertsWeight {
  virtual ~ExpertsWeight() = default;
  uint32_t num_experts = 0;
  uint32_t in_features = 0;
  uint32_t out_features = 0;
};
struct EmbeddingWeight {
  virtual ~EmbeddingWeight() = default;
  uint32_t rows = 0;
  uint32_t cols = 0;
};

// Rows [begin, end) of a tensor of the checkpoint, and of its bias: a vector of as many values as
// the view has rows; null: none.
struct WeightRows {
  const TensorView* view = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
  const TensorView* bias = nullptr;
};

struct RopeSpec {
  uint32_t dim = 0;          // leading dims of a head that rotate
  bool interleaved = false;  // pairs (2i, 2i+1), else (i, i + dim / 2)
  float theta = 10000.0f;
  uint32_t max_positions = 0;
  // [dim / 2]: frequency i is theta^(-2i / dim) / divisors[i]; empty: not divided.
  std::vector<double> divisors = {};
  float magnitude = 1;  // what rotated values are multiplied with
};
struct RopeTable {
  virtual ~RopeTable() = default;
  RopeSpec spec;
};

// This rank's part of the KV cache.
struct KvCacheShape {
  uint32_t num_layers = 0;
  uint32_t page_size = 0;  // tokens
  uint32_t num_kv_heads = 0;
  uint32_t qk_dim = 0;
  uint32_t v_dim = 0;
};

// One attention layer on this rank. A token's row of `qkv` is [q heads | k heads | v heads].
struct AttentionLayer {
  uint32_t layer = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t qk_dim = 0;
  uint32_t v_dim = 0;
  float scale = 0;
  float softcap = 0;      // a scaled score becomes cap * tanh(score / cap); 0: it stays
  uint32_t window = 0;    // a query sees itself and window - 1 keys before; 0: all
  bool writes_kv = true;  // false: reads the cache that another layer wrote

  uint32_t qkv_cols() const { return (num_heads + num_kv_heads) * qk_dim + num_kv_heads * v_dim; }
};

// Norms of each head of q and of k: vectors of qk_dim.
struct HeadNorms {
  const VectorWeight& q;
  const VectorWeight& k;
  float eps = 0;
};

// What q and k go through before attention.
struct HeadRotation {
  const RopeTable& rope;
  const AttentionLayer& layer;
  const HeadNorms* norms = nullptr;  // null: none
};

// The rows of `weight` are [gate | up].
struct GateUp {
  const LinearWeight& weight;
  HiddenAct act = HiddenAct::kSilu;
};

// How tokens find their experts: the top_k of num_experts with the highest logits, of equal ones
// the first; what is no number is the lowest. Their weights are the softmax over all logits,
// divided by their sum if `renormalize`.
struct ExpertRouting {
  uint32_t num_experts = 0;
  uint32_t top_k = 0;
  bool renormalize = false;
};
// Of a step at most, and of this rank.
struct ExpertBounds {
  uint32_t tokens = 0;
  uint32_t in_features = 0;   // of experts
  uint32_t out_features = 0;  // of ExpertsLinear, here
};
// What RouteTokens has found for a step's tokens, in a form of the backend's. The tokens' top_k
// rows each are in an order of its own, which all ranks have.
struct ExpertRoutes {
  virtual ~ExpertRoutes() = default;
  ExpertRouting routing;
};
// As GateUp, of each expert.
struct ExpertsGateUp {
  const ExpertsWeight& weight;
  HiddenAct act = HiddenAct::kSilu;
};

// A step's metadata where the device reads it (requirement 004's attention context, passed
// explicitly). Made by BeginStep, valid until the next; the fields are ForwardBatch's.
struct AttentionContext {
  uint32_t num_tokens = 0;
  uint32_t num_seqs = 0;
  const int32_t* input_ids = nullptr;
  const uint32_t* positions = nullptr;
  const int64_t* slot_mapping = nullptr;
  const uint32_t* cu_q_lens = nullptr;
  const uint32_t* kv_lens = nullptr;
  const uint32_t* page_indices = nullptr;
  uint32_t pages_per_seq = 0;
};

// How large a step may be; what a plan is prepared for.
struct PlanShape {
  uint32_t num_tokens = 0;
  uint32_t num_seqs = 0;
};

// Bytes by what they are for: the start-up report and the memory metric.
struct BackendMemory {
  uint64_t weights = 0;
  uint64_t step_weights = 0;  // of them, what each step reads: every matrix once
  uint64_t packed = 0;        // of step_weights, what this start packed, and no earlier one
  uint64_t activations = 0;
  uint64_t kv_cache = 0;
};

// Of the steps so far, on a backend that replays graphs.
struct GraphSteps {
  uint64_t eager = 0;
  uint64_t piecewise = 0;
  uint64_t full = 0;
  uint64_t tokens = 0;          // of those that were replayed
  uint64_t padding_tokens = 0;  // computed besides, for nothing
};

class DeviceSampler;  // runner/device_sampler.h

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // as in the fingerprint: equal names, equal bits
  virtual BackendMemory memory() const = 0;
  virtual GraphSteps graph_steps() const { return {}; }

  // ---- Start: weights, buffers, cache.
  // What a matrix takes once it is loaded.
  virtual uint64_t WeightBytes(const TensorView& view) const = 0;
  // That a table of embeddings takes on each rank, unless the whole head is the same matrix; 0: it
  // stays in the file.
  virtual uint64_t EmbeddingBytes(const TensorView& /*view*/) const { return 0; }
  // The concatenation of `rows` of tensors of any types as one matrix [out, in].
  virtual StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows) = 0;
  // experts[e]: as LoadLinear's rows.
  virtual StatusOr<std::unique_ptr<ExpertsWeight>> LoadExperts(
      std::span<const std::vector<WeightRows>> experts) = 0;
  // [experts, in], as precise as the file has it, whatever other products are made in: a small
  // error would choose another expert.
  virtual StatusOr<std::unique_ptr<LinearWeight>> LoadRouter(const TensorView& view) = 0;
  // Float.
  static uint64_t RouterBytes(const TensorView& view) {
    return view.rows * view.cols * sizeof(float);
  }
  virtual StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view,
                                                             const VectorChange& change) = 0;
  // May keep reading `view`, which lives as long as the checkpoint.
  virtual StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view) = 0;
  virtual StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec) = 0;
  // After all weights: their types decide what an element of a tensor is.
  virtual StatusOr<Tensor> NewTensor(TensorUse use, uint32_t max_rows, uint32_t cols) = 0;
  // This rank's part of a tensor that ranks gather: cols[r] columns are rank r's.
  virtual StatusOr<Tensor> NewShard(TensorUse use, uint32_t max_rows,
                                    std::span<const uint32_t> cols, uint32_t rank) = 0;
  // The backend owns it. After all weights.
  virtual StatusOr<ExpertRoutes*> NewExpertRoutes(const ExpertRouting& routing,
                                                  const ExpertBounds& bounds) = 0;
  // Scratch of all ops for steps within these bounds; touches every buffer, so that the memory a
  // step needs is known (and there) before the KV cache is sized.
  struct StepBounds {
    uint32_t max_tokens = 0;
    uint32_t max_seqs = 0;
    uint32_t max_positions = 0;
    uint32_t page_size = 0;
  };
  virtual Status Warmup(const StepBounds& bounds) = 0;
  // key_bytes: of a key's K and V of one head.
  static uint64_t KvPageBytesOf(const KvCacheShape& shape, uint64_t key_bytes) {
    return key_bytes * shape.num_layers * shape.page_size * shape.num_kv_heads;
  }
  virtual uint64_t KvPageBytes(const KvCacheShape& shape) const = 0;
  virtual Status AllocateKvCache(const KvCacheShape& shape, uint32_t num_pages) = 0;
  // What a step of up to `shape` needs besides, so that it allocates nothing. After a first step,
  // which shows the layers' geometry.
  virtual void PreparePlan(const PlanShape& shape) = 0;
  // All ranks at the beginning of an epoch, after a first step: captures what it will replay, or
  // nothing. graph_steps counts from here on.
  virtual Status PrepareGraphs(Collective& /*collective*/, bool /*capture*/) { return OkStatus(); }
  // After the largest step, whose KV cache is still there: bytes that PrepareGraphs will take,
  // about.
  virtual StatusOr<uint64_t> GraphBytes() { return uint64_t{0}; }

  // ---- A step.
  virtual AttentionContext BeginStep(const ForwardBatch& batch) = 0;
  // A model's forward over a batch: BeginStep and `forward`, or what they would enqueue, from a
  // graph that was captured for steps of such a size. Of the result the batch's rows count.
  using Forward = std::function<StatusOr<Tensor>(const AttentionContext&)>;
  virtual StatusOr<Tensor> RunForward(const ForwardBatch& batch, const Forward& forward) {
    return forward(BeginStep(batch));
  }
  // out = scale * the tokens' rows.
  virtual void Embed(const EmbeddingWeight& weight, const AttentionContext& context, float scale,
                     Tensor out) = 0;
  // `out` may be x.
  virtual void RmsNorm(Tensor x, const VectorWeight& weight, float eps, Tensor out) = 0;
  // residual += x; out = norm(residual).
  virtual void AddRmsNorm(Tensor x, Tensor residual, const VectorWeight& weight, float eps,
                          Tensor out) = 0;
  virtual void Linear(const LinearWeight& weight, Tensor x, Tensor out) = 0;
  struct AddNorm {
    Tensor x, residual;  // x is scratch
    const VectorWeight& weight;
    float eps = 0;
    Tensor out;
    // The next Linear or LinearActMul multiplies `out`, and no other op reads it.
    bool for_next_product = false;
  };
  // Linear into add.x, and AddRmsNorm.
  virtual void LinearAddRmsNorm(const LinearWeight& weight, Tensor x, const AddNorm& add) {
    Linear(weight, x, add.x);
    AddRmsNorm(add.x, add.residual, add.weight, add.eps, add.out);
  }
  // Norms each head of q and k and rotates it, in place, then stores k and v in the cache at the
  // context's slots.
  virtual void RopeAndWriteKv(const HeadRotation& rotation, const AttentionContext& context,
                              Tensor qkv) = 0;
  virtual void RaggedPagedAttention(const AttentionLayer& layer, const AttentionContext& context,
                                    Tensor qkv, Tensor out) = 0;
  // Both, of rotation.layer; of q and k in qkv nothing is to be read afterwards.
  virtual void RotateAndAttend(const HeadRotation& rotation, const AttentionContext& context,
                               Tensor qkv, Tensor out) {
    RopeAndWriteKv(rotation, context, qkv);
    RaggedPagedAttention(rotation.layer, context, qkv, out);
  }
  // out = act(gate x) * (up x). gate_up: of use kGateUp.
  virtual void LinearActMul(const GateUp& gate, Tensor x, Tensor gate_up, Tensor out) = 0;
  // x: of use kRouterInput.
  virtual void RouteTokens(const LinearWeight& router, Tensor x, ExpertRoutes* routes) = 0;
  // LinearActMul of x's rows by each of their experts: x.rows * top_k rows of gate_up, which is of
  // use kExpertsGateUp, and out.
  virtual void ExpertsActMul(const ExpertsGateUp& gate, ExpertRoutes* routes, Tensor x,
                             Tensor gate_up, Tensor out) = 0;
  // out = for each token the weighted sum of Linear of its top_k rows of x, in the order of the
  // experts.
  virtual void ExpertsLinear(const ExpertsWeight& weight, ExpertRoutes* routes, Tensor x,
                             Tensor out) = 0;
  // x = cap * tanh(x / cap), in place; x of use kLogits.
  virtual void SoftCap(float cap, Tensor x) = 0;
  virtual void SelectRows(Tensor x, std::span<const uint32_t> rows, Tensor out) = 0;

  // ---- Ranks. All of them at the beginning of an epoch: what they need of each other.
  virtual Status ConnectRanks(Collective& /*collective*/) { return OkStatus(); }
  // cols[r]: columns of rank r; out has their sum, in rank order; local is a shard.
  virtual Status AllGatherColumns(Collective& collective, std::span<const uint32_t> cols,
                                  Tensor local, Tensor out) = 0;
  // AllGatherColumns into norm.x, and AddRmsNorm.
  virtual Status AllGatherAddRmsNorm(Collective& collective, std::span<const uint32_t> cols,
                                     Tensor local, const AddNorm& norm) {
    RETURN_IF_ERROR(AllGatherColumns(collective, cols, local, norm.x));
    AddRmsNorm(norm.x, norm.residual, norm.weight, norm.eps, norm.out);
    return OkStatus();
  }
  // As AllGatherColumns, but only `root` gets the result.
  virtual Status GatherColumns(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                               uint32_t root, Tensor out) = 0;
  // Since ConnectRanks, the same on all of them: exchanges are enqueued as other ops, and it is the
  // device that waits for the other ranks.
  virtual bool exchanges_are_queued() const { return false; }
  // Of those: Aborted or DeadlineExceeded once a rank did not come, until ConnectRanks.
  virtual Status LostExchange() { return OkStatus(); }

  // Adds 1 to *bell (of shared memory) and wakes who waits there, within the step that begins next
  // and where that holds it up the least.
  virtual void WakeSoon(std::atomic<uint32_t>* bell) = 0;
  // Waits for the step's ops; their first error.
  virtual Status Finish() = 0;
  // Without waiting: the first error of what was enqueued, as far as it is known.
  virtual Status TakeError() { return OkStatus(); }
  // Rank 0, before the KV cache. Null: rows are sampled on the host. The backend owns it.
  struct SamplerSpec {
    uint32_t max_rows = 0;  // of logits
    uint32_t num_slots = 0;
    uint32_t vocab_size = 0;
    std::span<const int32_t> eos_ids = {};  // which min_tokens keeps from being drawn
  };
  virtual StatusOr<DeviceSampler*> MakeSampler(const SamplerSpec& /*spec*/) { return nullptr; }
  // The other ranks, whose steps have the tokens that rank 0 samples.
  virtual StatusOr<DeviceSampler*> FollowSampler(uint32_t /*num_slots*/) { return nullptr; }
  // logits.rows × logits.cols floats on the host, the reader's until the next op on that tensor.
  virtual StatusOr<std::span<float>> ReadLogits(Tensor logits) = 0;
};

}  // namespace flotilla
