#include "deploy/launcher/model_needs.h"

#include <algorithm>

#include "common/base/flags.h"
#include "common/base/memory_info.h"

namespace flotilla {
namespace {

bool IsQuantised(const Checkpoint& model) {
  return std::any_of(model.tensors().begin(), model.tensors().end(),
                     [](const TensorView& tensor) { return IsQuantised(tensor.dtype); });
}

// As the CPU backend has it: --dtype float32 makes floats of all but F16 and BF16, int8 makes
// blocks of 32 with a scale of the matrices of a model that has no quantised ones.
uint64_t WeightBytes(const Checkpoint& model, const std::string& dtype) {
  // An embedding that is not the head, too, stays in the file.
  const bool untied = model.Find("lm_head.weight") != nullptr;
  const bool to_int8 = dtype == "int8" && !IsQuantised(model);
  uint64_t bytes = 0;
  for (const TensorView& tensor : model.tensors()) {
    if (untied && tensor.name == "model.embed_tokens.weight") continue;
    const bool halves = !IsQuantised(tensor.dtype) && tensor.dtype != DType::kF32;
    if (dtype == "float32" && !halves) {
      bytes += tensor.rows * tensor.cols * 4;
    } else if (to_int8 && tensor.rows > 1 && tensor.cols % 32 == 0) {
      bytes += tensor.rows * tensor.cols / 32 * 34;
    } else if (tensor.dtype == DType::kF8E4M3) {
      bytes += tensor.rows * tensor.cols * 2;
    } else {
      bytes += tensor.data.size();
    }
  }
  return bytes;
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
                   uint32_t tp, uint64_t available_bytes) {
  const ModelConfig& config = model.config();
  ModelNeeds needs{.name = name, .replicas = options.replicas};
  needs.weight_bytes = WeightBytes(model, options.dtype);
  const uint64_t tokens =
      options.context_length != 0 ? options.context_length : config.max_position_embeddings;
  const uint64_t page = std::max<uint64_t>(1, options.page_size);
  needs.context_bytes = (tokens + page - 1) / page * page * 2 * config.num_hidden_layers *
                        std::max(config.num_key_value_heads, tp) * HeadBytes(model, options);
  const uint64_t chosen = std::stoull(options.kv_cache_memory);
  needs.process_bytes = kReplicaOverheadBytes;
  const uint64_t loaded = needs.replicas * (needs.weight_bytes + needs.process_bytes);
  const uint64_t left = available_bytes - std::min(available_bytes, loaded);
  // All of them together at most half of what is left.
  needs.kv_bytes = chosen != 0 ? chosen
                               : std::min(AutomaticKvBytes(left, needs.context_bytes),
                                          left / 2 / needs.replicas);
  return needs;
}

Status ShareMemory(const ModelNeeds& needs, uint64_t available_bytes, ServeOptions* options) {
  if (needs.replicas == 1) return OkStatus();
  const bool one_copy = options->pack_cache_dir != "off" && needs.weight_bytes >= kLeastPackBytes;
  const uint64_t copies = one_copy ? (needs.replicas - 1) * needs.weight_bytes : 0;
  if (needs.all() - copies > available_bytes) {
    return absl::ResourceExhaustedError(StrCat(
        "--replicas ", needs.replicas, " need ", FormatBytes(needs.all()), " of memory (each ",
        FormatBytes(needs.weight_bytes), " of weights, ", FormatBytes(needs.cache_bytes()),
        " of KV cache and ", FormatBytes(needs.process_bytes), " of processes), ",
        FormatBytes(available_bytes),
        " are available; use fewer replicas, or a smaller --kv-cache-memory or --context-length"));
  }
  if (options->kv_cache_memory == "0") options->kv_cache_memory = StrCat(needs.kv_bytes);
  return OkStatus();
}

}  // namespace flotilla
