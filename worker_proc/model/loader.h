// Moves weights from a checkpoint into a backend (requirement 004): a model asks for its parameters
// by module name; packed_modules_mapping says which of the checkpoint's tensors make up a packed
// one
// ("qkv_proj" = q_proj, k_proj, v_proj); anything else is taken directly. Only the rows this rank
// needs are read; bytes are counted.
//
// Threads: one. Ownership: checkpoint and backend outlive the loader and the weights. Errors:
// NotFound for a missing tensor, InvalidArgument for a wrong shape (both name the tensor);
// CheckAllUsed for tensors that the model does not know, because ignoring them would change its
// words.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker_proc/model/backend.h"
#include "worker_proc/model/partition.h"

namespace flotilla {

// One line of packed_modules_mapping; a packed module's shards follow each other in table order.
struct PackedModule {
  std::string_view source;  // "q_proj"
  std::string_view packed;  // "qkv_proj"
};

// The part of one source tensor: its full shape, for the check, and this rank's rows.
struct Shard {
  uint32_t full_rows = 0;
  RowRange rows;
};

struct LinearShape {
  uint32_t in_features = 0;
  bool bias = false;  // each source has a vector ".bias"
};

class WeightLoader {
 public:
  // progress(bytes read, bytes in all): called after each tensor.
  using Progress = std::function<void(uint64_t, uint64_t)>;
  WeightLoader(const Checkpoint* checkpoint, Backend* backend,
               std::span<const PackedModule> packed_modules, Progress progress);

  // module: "model.layers.0.self_attn.qkv_proj" with one shard for each of its sources, or the name
  // of a plain linear with one shard.
  StatusOr<std::unique_ptr<LinearWeight>> Linear(const std::string& module,
                                                 std::span<const Shard> shards,
                                                 const LinearShape& shape);
  // prefix: "model.layers.0.mlp.experts."; each expert's module is its number and `leaf`, with
  // shards as Linear's.
  StatusOr<std::unique_ptr<ExpertsWeight>> Experts(const std::string& prefix, uint32_t num_experts,
                                                   const std::string& leaf,
                                                   std::span<const Shard> shards,
                                                   const LinearShape& shape);
  StatusOr<std::unique_ptr<LinearWeight>> Router(const std::string& module, uint32_t num_experts,
                                                 uint32_t in_features);
  StatusOr<std::unique_ptr<VectorWeight>> Vector(const std::string& module, uint32_t size,
                                                 const VectorChange& change = {});
  StatusOr<std::unique_ptr<EmbeddingWeight>> Embedding(const std::string& module, uint32_t rows,
                                                       uint32_t cols);
  bool Has(const std::string& module) const;

  // Error if the checkpoint has tensors that nobody asked for.
  Status CheckAllUsed() const;
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  StatusOr<const TensorView*> Find(const std::string& name, uint64_t rows, uint64_t cols);
  // The tensors that make up a module, and what this rank takes of them.
  StatusOr<std::vector<WeightRows>> RowsOf(const std::string& module, std::span<const Shard> shards,
                                           const LinearShape& shape);
  void Finish(const TensorView& view, uint64_t rows);

  const Checkpoint* const checkpoint_;
  Backend* const backend_;
  const std::span<const PackedModule> packed_modules_;
  const Progress progress_;
  uint64_t total_bytes_ = 0;
  uint64_t bytes_read_ = 0;
  const TensorView* whole_embedding_ = nullptr;  // that was read
  std::set<std::string, std::less<>> used_;
};

}  // namespace flotilla
