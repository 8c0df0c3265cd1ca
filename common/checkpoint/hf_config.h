// A config.json as transformers writes it → ModelConfig. Private to common/checkpoint, but for
// tests and fuzzing.
//
// Threads: pure function. Errors: InvalidArgument or NotFound naming the key; what would change the
// mathematics and is not known is refused.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/checkpoint/model_config.h"

namespace flotilla::internal {

StatusOr<ModelConfig> ReadHfConfig(std::string_view json);

}  // namespace flotilla::internal
