// Brings a checkpoint's weights into the form that the kernels read: packed by all compute threads,
// into memory with large pages.
//
// Units: bytes, rows. Threads: the caller's, with the pool's. Ownership: the store owns the packed
// matrices and outlives what it returns. Errors: ResourceExhausted.
#pragma once

#include <memory>
#include <span>

#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::cpu {

class WeightStore {
 public:
  WeightStore(ThreadPool* pool, const Heartbeat& heartbeat);

  // As Backend's.
  uint64_t WeightBytes(const TensorView& view) const;
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows);
  std::unique_ptr<VectorWeight> LoadVector(const TensorView& view);
  std::unique_ptr<EmbeddingWeight> LoadEmbedding(const TensorView& view) const;
  std::unique_ptr<RopeTable> MakeRope(const RopeSpec& spec);

  uint64_t matrix_bytes() const { return matrices_.bytes(); }
  uint64_t other_bytes() const { return other_bytes_; }  // norms, RoPE's table

 private:
  ThreadPool* const pool_;
  const Heartbeat heartbeat_;
  Arena matrices_;
  uint64_t other_bytes_ = 0;
};

}  // namespace flotilla::cpu
