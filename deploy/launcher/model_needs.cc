#include "deploy/launcher/model_needs.h"

#include <algorithm>

#include "common/base/memory_info.h"

namespace flotilla {
namespace {

// As the CPU backend has it: --dtype float32 makes floats of all but F16 and BF16.
uint64_t WeightBytes(const TensorView& tensor, const std::string& dtype) {
  const bool halves = tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  return dtype == "float32" && !halves ? tensor.rows * tensor.cols * 4 : tensor.data.size();
}

bool IsQuantised(const Checkpoint& model) {
  return std::any_of(model.tensors().begin(), model.tensors().end(), [](const TensorView& tensor) {
    return Traits(tensor.dtype).block_values > 1;
  });
}

// A token's key, or value, of one head.
uint64_t HeadBytes(const Checkpoint& model, const ServeOptions& options) {
  const uint64_t head_dim = model.config().head_dim;
  if (options.kv_cache_dtype == "int8") return head_dim + 4;  // a scale
  const bool floats =
      options.dtype == "float32" || (options.dtype == "auto" && !IsQuantised(model));
  const bool automatic = options.kv_cache_dtype == "auto";
  return head_dim * (options.kv_cache_dtype == "float32" || (automatic && floats) ? 4 : 2);
}

}  // namespace

ModelNeeds NeedsOf(const Checkpoint& model, const std::string& name, const ServeOptions& options,
                   uint64_t available_bytes) {
  const ModelConfig& config = model.config();
  ModelNeeds needs{.name = name, .replicas = options.replicas};
  for (const TensorView& tensor : model.tensors()) {
    needs.weight_bytes += WeightBytes(tensor, options.dtype);
  }
  const uint64_t tokens =
      options.context_length != 0 ? options.context_length : config.max_position_embeddings;
  const uint64_t page = std::max<uint64_t>(1, options.page_size);
  needs.context_bytes = (tokens + page - 1) / page * page * 2 * config.num_hidden_layers *
                        config.num_key_value_heads * HeadBytes(model, options);
  const uint64_t chosen = std::stoull(options.kv_cache_memory);
  needs.process_bytes = kReplicaOverheadBytes;
  const uint64_t loaded = needs.replicas * (needs.weight_bytes + needs.process_bytes);
  const uint64_t left = available_bytes - std::min(available_bytes, loaded);
  needs.kv_bytes = chosen != 0 ? chosen : AutomaticKvBytes(left, needs.context_bytes);
  return needs;
}

}  // namespace flotilla
