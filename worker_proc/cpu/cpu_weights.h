// Brings a checkpoint's weights into the form that the kernels read: packed by all compute threads,
// into memory with large pages. F32, F16 and BF16 stay at their own width, for int8 compute so do
// quantised tensors; everything else becomes float32. Matrices that an earlier start has packed
// come from its file.
//
// Units: bytes, rows. Threads: the caller's, with the pool's. Ownership: the store owns the packed
// matrices and outlives what it returns. Errors: ResourceExhausted; InvalidArgument for weights
// that can't be quantised.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/pack_cache.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::cpu {

// In what the matrices are multiplied. kInt8OfFloats: as kInt8, and float matrices become Q8_0 as
// they are loaded (quantize_weights.h), but for those whose rows are not whole blocks.
enum class ComputeType : uint32_t { kFloat32, kInt8, kInt8OfFloats };
const char* ComputeTypeName(ComputeType compute);  // as in the backend's name

class WeightStore {
 public:
  WeightStore(ComputeType compute, ThreadPool* pool, const Heartbeat& heartbeat,
              const PackCacheOptions& cache);

  // As Backend's.
  uint64_t WeightBytes(const TensorView& view) const;
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows);
  StatusOr<std::unique_ptr<ExpertsWeight>> LoadExperts(
      std::span<const std::vector<WeightRows>> experts);
  // In float.
  StatusOr<std::unique_ptr<LinearWeight>> LoadRouter(const TensorView& view);
  std::unique_ptr<VectorWeight> LoadVector(const TensorView& view, const VectorChange& change);
  // Before the matrices: it reads its rows from the one that packs the same tensor whole.
  std::unique_ptr<EmbeddingWeight> LoadEmbedding(const TensorView& view);
  std::unique_ptr<RopeTable> MakeRope(const RopeSpec& spec);

  // All weights are loaded: what had to be packed is kept for the next start.
  void Finish() { cache_.SaveInBackground(); }

  // Of the matrices loaded so far.
  bool has_float() const { return has_float_; }
  bool has_quant() const { return has_quant_; }
  bool has_split() const { return has_split_; }  // one of several parts
  uint64_t matrix_bytes() const { return cache_.bytes_packed() + cache_.bytes_from_file(); }
  uint64_t packed_bytes() const { return cache_.bytes_packed(); }  // not from a file
  uint64_t other_bytes() const { return other_bytes_; }            // norms, RoPE's table

 private:
  // In memory; kF32 for what must be dequantised.
  DType StoredType(const TensorView& view) const;
  Status LoadPart(std::span<const WeightRows> rows, CpuLinear* weight);
  // The panels of `rows` as `part` says, from the cache or packed.
  StatusOr<const std::byte*> Panels(std::span<const WeightRows> rows, DType stored,
                                    const PackPart& part);
  void LoadBias(std::span<const WeightRows> rows, CpuLinear* weight);

  // If `part` is the embeddings' matrix as the file has it, they are read from there.
  void ShareWithEmbedding(std::span<const WeightRows> rows, DType stored, const LinearPart& part);

  const ComputeType compute_;
  ThreadPool* const pool_;
  const Heartbeat heartbeat_;
  Arena matrices_;
  PackCache cache_;                    // reads matrices_ until it is gone
  CpuEmbedding* embedding_ = nullptr;  // the model's, which outlives the loading
  uint64_t other_bytes_ = 0;
  bool has_float_ = false;
  bool has_quant_ = false;
  bool has_split_ = false;
};

}  // namespace flotilla::cpu
