// What the runner needs of a model, and what a model gets. A new model is one file and one line in
// registry.cc.
//
// Forward and ComputeLogits are the two executables of a model (the sampler is the third). All
// ranks call them in the same order with the same shapes; HiddenStates is any rank's own. Threads:
// one. Errors: those of the collective (Aborted, DeadlineExceeded: the step is lost, the model is
// not) and of the backend.
#pragma once

#include <memory>

#include "worker_proc/model/backend.h"
#include "worker_proc/model/loader.h"
#include "worker_proc/model/partition.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla {

// Everything outlives the model.
struct ModelEnv {
  const ModelConfig* config = nullptr;
  Backend* backend = nullptr;
  Collective* collective = nullptr;
  const Heartbeat* heartbeat = nullptr;
  TpPartition partition;
  uint32_t max_tokens = 0;       // a step
  uint32_t max_logits_rows = 0;  // a call of ComputeLogits
  uint32_t max_positions = 0;    // context length
  uint32_t page_size = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  // Terms of the loader's packed_modules_mapping; static.
  virtual std::span<const PackedModule> packed_modules_mapping() const = 0;
  virtual Status LoadWeights(WeightLoader* loader) = 0;
  // Activation buffers for the bounds of the env.
  virtual Status AllocateBuffers() = 0;
  virtual KvCacheShape kv_shape(uint32_t rank) const = 0;

  // Final normed hidden states [context.num_tokens, hidden_size] on every rank.
  virtual StatusOr<Tensor> Forward(const AttentionContext& context) = 0;
  // Logits [rows.size(), vocab_size] on rank 0, nothing on the others. rows index `hidden`.
  virtual StatusOr<Tensor> ComputeLogits(Tensor hidden, std::span<const uint32_t> rows) = 0;
  // Final normed hidden states [rows.size(), hidden_size] of the last Forward in float, whatever
  // the arithmetic; at most max_logits_rows. `rows` index its tokens. Of use kLogits.
  virtual StatusOr<Tensor> HiddenStates(std::span<const uint32_t> rows) = 0;
};

}  // namespace flotilla
