// Hyperparameters by either of their names: what a GGUF's metadata and a config.json have in
// common, read once for both. Private to common/checkpoint.
//
// Threads: pure functions. Errors: InvalidArgument or NotFound, naming the key and the fix.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "common/checkpoint/model_config.h"

namespace flotilla::internal {

struct Architecture;

inline constexpr uint64_t kMaxLayers = 1024;
inline constexpr uint64_t kMaxHeads = 4096;
inline constexpr uint64_t kMaxWidth = uint64_t{1} << 20;
inline constexpr uint64_t kMaxExperts = 1024;
inline constexpr uint64_t kMaxExpertsOfAll = uint64_t{1} << 16;
inline constexpr uint64_t kMaxVocab = uint64_t{1} << 24;
inline constexpr uint64_t kMaxContext = uint64_t{1} << 24;

// A hyperparameter: GGUF's key behind the architecture ("block_count") and config.json's. "" has no
// value there.
struct ConfigField {
  std::string_view gguf;
  std::string_view hf;
};

class ConfigSource {
 public:
  virtual ~ConfigSource() = default;
  virtual bool Has(const ConfigField& field) const = 0;
  virtual StatusOr<uint64_t> Uint(const ConfigField& field) const = 0;
  virtual StatusOr<double> Float(const ConfigField& field) const = 0;
  // "metadata llama.block_count <problem>", "config.json: num_hidden_layers <problem>".
  virtual Status Error(const ConfigField& field, std::string_view problem) const = 0;

  // An integer in 1..max.
  StatusOr<uint32_t> Count(const ConfigField& field, uint64_t max) const;
  StatusOr<uint32_t> CountOr(const ConfigField& field, uint64_t max, uint32_t fallback) const;
  // A number within [least, most].
  StatusOr<float> FloatIn(const ConfigField& field, double least, double most) const;
};

// Layers, widths, heads, norms' epsilon, and what the architecture says. Every number is within a
// bound that keeps later products (positions × heads × dims …) far from overflow, and they fit each
// other.
Status ReadCommonConfig(const ConfigSource& source, const Architecture& architecture,
                        ModelConfig* config);

// The base of the rotation's frequencies, in 1..1e12.
StatusOr<float> ReadTheta(const ConfigSource& source, const ConfigField& field);

// Sets sliding layers: those for which `is_sliding` holds, if there is a window.
template <typename F>
void SetSlidingLayers(ModelConfig* config, uint32_t window, const F& is_sliding) {
  config->sliding_window = window;
  config->sliding_layers.resize(config->num_hidden_layers);
  for (uint32_t i = 0; i < config->num_hidden_layers; ++i)
    config->sliding_layers[i] = is_sliding(i);
}

inline void SetWindowOfAllLayers(uint32_t window, ModelConfig* config) {
  SetSlidingLayers(config, window, [](uint32_t) { return true; });
}

}  // namespace flotilla::internal
