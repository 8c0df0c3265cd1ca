// GGUF's `llama` architecture: hyperparameters and the exact set of tensors. Private to
// common/checkpoint.
//
// Threads: pure functions. Errors: InvalidArgument naming the metadata key or tensor and the fix.
#pragma once

#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/gguf.h"

namespace flotilla::internal {

// Reads and validates the hyperparameters: every number is within a bound that keeps later products
// (positions × heads × dims …) far from overflow, and they fit each other.
StatusOr<ModelConfig> ReadLlamaConfig(const GgufFile& gguf);

// Checks that the tensors (HF names) are exactly those of the config, with its shapes.
Status CheckLlamaTensors(const ModelConfig& config, const std::vector<TensorView>& tensors);

}  // namespace flotilla::internal
