// A config.json as transformers writes it → ModelConfig. Private to common/checkpoint, but for
// tests and fuzzing.
//
// Threads: pure function. Errors: InvalidArgument or NotFound naming the key; what would change the
// mathematics and is not known is refused.
#pragma once

#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "common/checkpoint/fp8_config.h"
#include "common/checkpoint/model_config.h"

namespace flotilla::internal {

StatusOr<ModelConfig> ReadHfConfig(std::string_view json);
// Of one that ReadHfConfig reads: of its matrices of 8-bit floats; none: there are none.
StatusOr<std::optional<Fp8Config>> ReadHfFp8Config(std::string_view json);

}  // namespace flotilla::internal
