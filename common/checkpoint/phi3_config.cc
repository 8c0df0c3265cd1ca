// What is Phi-3's own: a window on all layers. (Fused matrices: architecture.cc.)
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/rope_config.h"

namespace flotilla::internal {

// 0 is none.
Status FinishPhi3Gguf(const GgufFile& gguf, ModelConfig* config) {
  constexpr char kKey[] = "phi3.attention.sliding_window";
  if (!gguf.metadata().contains(kKey)) return OkStatus();
  ASSIGN_OR_RETURN(const uint64_t window, gguf.GetUint(kKey));
  if (window > kMaxContext) {
    return absl::InvalidArgumentError(
        StrCat("metadata ", kKey, " is ", window, "; it must be in 0..", kMaxContext));
  }
  if (window > 0) SetWindowOfAllLayers(static_cast<uint32_t>(window), config);
  return OkStatus();
}

Status FinishPhi3Hf(const JsonObject& json, ModelConfig* config) {
  return ReadWindowOfAllLayers(json, config);
}

}  // namespace flotilla::internal
