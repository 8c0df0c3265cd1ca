// A GGUF's hyperparameters. Private to common/checkpoint.
//
// Threads: pure functions. Errors: InvalidArgument naming the metadata key or tensor and the fix.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/gguf.h"

namespace flotilla::internal {

// Of rope_scaling as factors of the frequencies (Llama 3): no weight, so part of the config.
inline constexpr std::string_view kRopeFactorsTensor = "rope_freqs.weight";
// LongRoPE's.
inline constexpr std::string_view kShortRopeFactorsTensor = "rope_factors_short.weight";
inline constexpr std::string_view kLongRopeFactorsTensor = "rope_factors_long.weight";
inline bool IsRopeFactors(std::string_view tensor) {
  return tensor == kRopeFactorsTensor || tensor == kShortRopeFactorsTensor ||
         tensor == kLongRopeFactorsTensor;
}

// Whether the metadata of such an architecture names any.
bool HasExperts(const GgufFile& gguf, std::string_view architecture);
StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf, const Architecture& architecture);

}  // namespace flotilla::internal
