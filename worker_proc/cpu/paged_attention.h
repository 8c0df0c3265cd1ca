// The CPU's KV cache and attention over it: writes a step's keys and values, and spreads ragged
// attention over the compute threads.
//
// Layouts and arithmetic are kernels.h's. Units: tokens, elements, bytes. Threads: the caller's,
// and the pool's within a call. Ownership: the pool outlives it; it owns the cache. A geometry's
// scratch is allocated when a layer first has it, which is the probe's step; PreparePlan does the
// rest. Errors: ResourceExhausted for memory, InvalidArgument for heads that int8 can't have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_proc/cpu/attention_items.h"
#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/kernels.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/cpu/thread_pool.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cpu {

class PagedAttention {
 public:
  PagedAttention(const KernelTable& kernels, const QuantKernelTable& quant, KvType type,
                 ThreadPool* pool)
      : kernels_(kernels), quant_(quant), type_(type), pool_(*pool) {}

  // Scratch for contexts of up to max_positions keys.
  Status Warmup(Arena* activations, uint32_t max_positions);
  uint64_t PageBytes(const KvCacheShape& shape) const {
    return Backend::KvPageBytesOf(shape,
                                  KvRowBytes(type_, shape.qk_dim) + KvRowBytes(type_, shape.v_dim));
  }
  Status Allocate(const KvCacheShape& shape, uint32_t num_pages, const Heartbeat& heartbeat);
  uint64_t cache_bytes() const { return cache_.bytes(); }

  // After a first step: later ones of up to `shape` allocate nothing.
  void PreparePlan(const PlanShape& shape);

  void BeginStep() { items_.BeginStep(); }
  // The tokens [begin, end) of the step; qkv: their rows.
  void Write(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv,
             uint32_t begin, uint32_t end) const;
  // `out` in float, quantised, or both.
  void Attend(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv, Tensor out);

 private:
  // Where a call's results go.
  struct Target {
    Tensor out;
    uint32_t cols = 0;  // of a kv head
    const uint32_t* cu_q_lens = nullptr;
  };

  KvGeometry Geometry() const {
    return {shape_.page_size, shape_.num_kv_heads, shape_.qk_dim, shape_.v_dim, type_};
  }
  std::byte* KPages(uint32_t layer) const { return cache_.data() + layer * layer_bytes_; }
  std::byte* VPages(uint32_t layer) const { return KPages(layer) + layer_k_bytes_; }
  AttentionArgs Args(const AttentionLayer& layer, const AttentionContext& context,
                     Tensor qkv) const;
  void PrepareScratch(const AttentionLayer& layer);
  AttentionPart Part(uint32_t row, uint32_t v_dim);
  void RunItem(const AttentionArgs& args, const std::vector<AttentionItem>& items, uint32_t i,
               uint32_t worker, const Target& target);
  void MergeParts(const AttentionArgs& args, const AttentionItems::Merge& merge,
                  const Target& target);
  // An item's result, [tokens, cols], into the columns from kv_head * cols on.
  void Store(const AttentionItem& item, const float* result, const Target& target) const;
  void QuantizeRows(Tensor out, uint32_t rows) const;

  const KernelTable& kernels_;
  const QuantKernelTable& quant_;
  const KvType type_;
  ThreadPool& pool_;

  KvCacheShape shape_;
  Buffer cache_;  // [layer][k pages | v pages]
  size_t layer_bytes_ = 0;
  size_t layer_k_bytes_ = 0;

  StepAttentionItems items_;
  std::vector<AttentionScratch> scratch_;          // of each worker
  std::vector<std::vector<float>> worker_floats_;  // what it points to, but for the scores
  uint32_t max_splits_ = 1;                        // of a row
  std::vector<float> part_floats_;                 // of splits: outs, maxima, sums
  uint32_t max_part_rows_ = 0;
  CpuTensor straddling_;
  std::vector<float> straddling_rows_;
  size_t straddling_cols_ = 0;  // 0: no layer needs them
};

}  // namespace flotilla::cpu
