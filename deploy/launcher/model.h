// What the launcher must know of a model before it starts anything: that the file or folder is one,
// and into how many ranks it can be split. It is opened as a worker opens it, so a missing,
// truncated or foreign one is refused here, once, with the parser's message.
//
// Threads: any. Errors: NotFound, InvalidArgument; messages name the file and the way out.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/model_config.h"

namespace flotilla {

// "default" or a path → an absolute path.
StatusOr<std::string> ResolveModelPath(const std::string& model);
StatusOr<ModelConfig> InspectModel(const std::string& path);

// "/m/SmolLM2-135M-Instruct.Q4_1.gguf" → "SmolLM2-135M-Instruct"
std::string ModelNameOfPath(const std::string& path);

// A number of ranks. Error InvalidArgument: more than the model has query heads.
StatusOr<uint32_t> ResolveTp(const std::string& tp, uint32_t query_heads);

}  // namespace flotilla
