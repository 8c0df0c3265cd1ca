// The CUDA backend's KV cache, and attention over it: writes a step's keys and values and spreads
// ragged attention over thread blocks.
//
// Layouts and arithmetic are those of kernels/rope_kv.h and kernels/paged_attention.h; a layer's K
// pages are followed by its V pages. A plan is made once a step for each kind of layer (heads and
// window) and uploaded. Units: tokens, bytes. Threads: one. Ownership: the device outlives it; it
// owns the cache and the plans' memory, which a kind of layer gets when it first attends: that is
// in the probe's step. Errors: ResourceExhausted for memory.
#pragma once

#include <deque>
#include <optional>

#include "worker_proc/cuda/attention_plan.h"
#include "worker_proc/cuda/cuda_tensor.h"

namespace flotilla::cuda {

class CudaAttention {
 public:
  CudaAttention(Device* device, Element kv_type) : device_(*device), kv_type_(kv_type) {}

  void Warmup(const Backend::StepBounds& bounds) { bounds_ = bounds; }
  uint64_t PageBytes(const KvCacheShape& shape) const {
    return Backend::KvPageBytesOf(shape, (shape.qk_dim + shape.v_dim) * ElementBytes(kv_type_));
  }
  Status Allocate(const KvCacheShape& shape, uint32_t num_pages);
  uint64_t cache_bytes() const { return cache_.bytes(); }
  uint64_t plan_bytes() const { return plan_bytes_; }

  // Brings the plans of the kinds of layers that have attended before; the batch stays until the
  // next one. fixed: for launches whose size and memory depend on this bucket alone.
  void BeginStep(const ForwardBatch* batch, std::optional<PlanShape> fixed = std::nullopt);
  // `args`, to which the layer's and the table's are added.
  RopeKvArgs RopeArgs(const RopeTable& rope, const AttentionLayer& layer, RopeKvArgs args) const;
  // rope: what comes first, where CanRotate says that attention can do it; none: it has been done.
  void Attend(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv, Tensor out,
              const std::optional<RopeKvArgs>& rope);
  // What has failed since the last call: memory of a kind of layer.
  Status TakeError() { return std::exchange(error_, OkStatus()); }

 private:
  // Of all layers with the same heads and window.
  struct Kind {
    AttentionLayer layer;  // one of them
    AttentionPlan plan;
    DeviceBuffer items, counters;
    DeviceBuffer part_out, part_max, part_sum;
    uint32_t max_part_rows = 0;
  };

  KvPages Pages(const AttentionLayer& layer) const;
  StatusOr<Kind*> KindOf(const AttentionLayer& layer);
  Status MakeRoom(Kind* kind);
  uint32_t ItemRows(const Kind& kind) const;
  AttentionPlanInput InputOf(const Kind& kind) const;
  void Plan(Kind* kind);

  Device& device_;
  const Element kv_type_;
  Backend::StepBounds bounds_;
  KvCacheShape shape_;
  uint32_t num_pages_ = 0;
  DeviceBuffer cache_;
  const ForwardBatch* batch_ = nullptr;
  std::optional<PlanShape> fixed_;
  std::deque<Kind> kinds_;
  uint64_t plan_bytes_ = 0;
  Status error_ = OkStatus();
};

}  // namespace flotilla::cuda
