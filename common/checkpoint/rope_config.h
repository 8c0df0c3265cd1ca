// Rotary embeddings and sliding layers as a config.json writes them: rope_theta and rope_scaling,
// or since transformers 5 rope_parameters, for all layers or by type of layer. Private to
// common/checkpoint.
//
// Threads: pure functions. Errors: InvalidArgument naming the key; a scaling that is not known is
// refused.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/json_object.h"
#include "common/checkpoint/model_config.h"

namespace flotilla::internal {

struct Architecture;

// theta (the architecture's where the file has none) and the frequencies' divisors; how much of a
// head rotates, if the architecture lets the file say that. Needs head_dim and
// max_position_embeddings.
Status ReadRope(const JsonObject& json, const Architecture& architecture, ModelConfig* config);
// theta of sliding layers.
Status ReadLocalRope(const JsonObject& json, float fallback, ModelConfig* config);
// sliding_window, which must be there.
StatusOr<uint32_t> ReadWindow(const JsonObject& json);
// The same on all layers; without it there is no window.
Status ReadWindowOfAllLayers(const JsonObject& json, ModelConfig* config);
// layer_types: which layers are "sliding_attention"; the others must be "full_attention".
StatusOr<std::vector<bool>> ReadSlidingLayers(const JsonObject& json, uint32_t num_layers);

}  // namespace flotilla::internal
