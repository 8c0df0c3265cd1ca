// A model folder as transformers writes it: config.json, and model.safetensors or its shards with
// model.safetensors.index.json. Private to common/checkpoint.
//
// Threads, ownership: as Checkpoint. Errors: the file and what is wrong in it.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla::internal {

StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(const std::string& folder);

}  // namespace flotilla::internal
