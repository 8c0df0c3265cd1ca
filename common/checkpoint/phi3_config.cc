// What is Phi-3's own: a window on all layers. (Fused matrices: architecture.cc.)
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"

namespace flotilla::internal {
namespace {

Status SetWindow(uint64_t window, const Status& wrong, ModelConfig* config) {
  if (window < 1 || window > kMaxContext) return wrong;
  SetSlidingLayers(config, static_cast<uint32_t>(window), [](uint32_t) { return true; });
  return OkStatus();
}

}  // namespace

// 0 is none.
Status FinishPhi3Gguf(const GgufFile& gguf, ModelConfig* config) {
  constexpr char kKey[] = "phi3.attention.sliding_window";
  if (!gguf.metadata().contains(kKey)) return OkStatus();
  ASSIGN_OR_RETURN(const uint64_t window, gguf.GetUint(kKey));
  if (window == 0) return OkStatus();
  return SetWindow(window,
                   absl::InvalidArgumentError(StrCat("metadata ", kKey, " is ", window,
                                                     "; it must be in 0..", kMaxContext)),
                   config);
}

Status FinishPhi3Hf(const JsonObject& json, ModelConfig* config) {
  constexpr char kKey[] = "sliding_window";
  if (!json.Has(kKey)) return OkStatus();
  ASSIGN_OR_RETURN(const uint64_t window, json.Uint(kKey));
  return SetWindow(
      window, json.Error(kKey, StrCat("is ", window, "; it must be in 1..", kMaxContext)), config);
}

}  // namespace flotilla::internal
