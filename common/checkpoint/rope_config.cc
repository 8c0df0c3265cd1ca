#include "common/checkpoint/rope_config.h"

#include <cmath>
#include <numbers>

#include "common/checkpoint/architecture.h"
#include "common/checkpoint/config_source.h"
#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

StatusOr<double> FloatIn(const JsonObject& json, std::string_view key, double least, double most) {
  ASSIGN_OR_RETURN(const double value, json.Float(key));
  if (value >= least && value <= most) return value;
  return json.Error(key, StrCat("is ", value, "; it must be in ", least, "..", most));
}

// Llama 3's: long waves are divided by the factor, short ones stay, and between the two the
// frequencies go from one to the other.
StatusOr<std::vector<double>> Llama3Divisors(const JsonObject& scaling, double factor,
                                             const ModelConfig& config) {
  ASSIGN_OR_RETURN(const double low, FloatIn(scaling, "low_freq_factor", 1e-3, 1e6));
  ASSIGN_OR_RETURN(const double high, FloatIn(scaling, "high_freq_factor", 1e-3, 1e6));
  ASSIGN_OR_RETURN(const double context,
                   FloatIn(scaling, "original_max_position_embeddings", 1, 1e9));
  if (high <= low) return scaling.Error("high_freq_factor", "must exceed low_freq_factor");
  std::vector<double> divisors;
  for (uint32_t i = 0; i < config.rope_dim / 2; ++i) {
    const double frequency = std::pow(config.rope_theta, -2.0 * i / config.rope_dim);
    const double waves = context * frequency / (2 * std::numbers::pi);  // in the whole context
    if (waves > high) {
      divisors.push_back(1);
    } else if (waves < low) {
      divisors.push_back(factor);
    } else {
      const double smooth = (waves - low) / (high - low);
      divisors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return divisors;
}

StatusOr<std::vector<double>> ReadFactors(const JsonObject& scaling, std::string_view key,
                                          uint32_t half) {
  ASSIGN_OR_RETURN(const std::vector<double> factors, scaling.Floats(key));
  if (factors.size() != half) {
    return scaling.Error(key, StrCat("has ", factors.size(), " entries for ", half,
                                     " pairs of rotating dimensions"));
  }
  for (const double factor : factors) {
    if (!(factor >= 1e-6 && factor <= 1e6))
      return scaling.Error(key, StrCat("has ", factor, "; each must be in 1e-6..1e6"));
  }
  return factors;
}

// Two sets of factors, for contexts up to the one of the training and beyond it ("LongRoPE", arXiv
// 2402.13753); the latter's ratio says what is multiplied with.
Status ReadLongRope(const JsonObject& json, const JsonObject& scaling, ModelConfig* config) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const JsonObject& from = scaling.Has(kOriginal) ? scaling : json;
  ASSIGN_OR_RETURN(const double original, FloatIn(from, kOriginal, 2, 1e9));
  const uint32_t half = config->rope_dim / 2;
  ASSIGN_OR_RETURN(config->rope_divisors, ReadFactors(scaling, "short_factor", half));
  ASSIGN_OR_RETURN(config->rope_long_divisors, ReadFactors(scaling, "long_factor", half));
  config->rope_original_context = static_cast<uint32_t>(original);
  const double ratio = config->max_position_embeddings / original;
  double magnitude = ratio > 1 ? std::sqrt(1 + std::log(ratio) / std::log(original)) : 1;
  if (scaling.Has("attention_factor")) {
    ASSIGN_OR_RETURN(magnitude, FloatIn(scaling, "attention_factor", 1e-3, 1e3));
  }
  config->rope_magnitude = static_cast<float>(magnitude);
  return OkStatus();
}

Status ReadScaling(const JsonObject& json, const JsonObject& scaling, ModelConfig* config) {
  const char* const key = scaling.Has("rope_type") ? "rope_type" : "type";
  std::string_view type = "default";
  if (scaling.Has(key)) {
    ASSIGN_OR_RETURN(type, scaling.String(key));
  }
  if (type == "default") return OkStatus();
  if (type == "longrope" || type == "su") return ReadLongRope(json, scaling, config);
  if (type != "linear" && type != "llama3") {
    return scaling.Error(
        key, StrCat("is ", Quote(type), "; supported: default, linear, llama3, longrope"));
  }
  ASSIGN_OR_RETURN(const double factor, FloatIn(scaling, "factor", 1, 1e6));
  if (type == "linear") {
    config->rope_divisors.assign(config->rope_dim / 2, factor);
    return OkStatus();
  }
  ASSIGN_OR_RETURN(config->rope_divisors, Llama3Divisors(scaling, factor, *config));
  return OkStatus();
}

// rope_parameters of a type of layer, where they are given by type; else of all layers.
StatusOr<JsonObject> RopeParameters(const JsonObject& json, std::string_view layer_type) {
  ASSIGN_OR_RETURN(const JsonObject parameters, json.Object("rope_parameters"));
  return parameters.Has(layer_type) ? parameters.Object(layer_type) : parameters;
}

}  // namespace

Status ReadRope(const JsonObject& json, const Architecture& architecture, ModelConfig* config) {
  config->rope_theta = static_cast<float>(architecture.rope_theta);
  const auto read_theta = [&](const JsonObject& from) -> Status {
    if (!from.Has("rope_theta")) return OkStatus();
    ASSIGN_OR_RETURN(const double theta, FloatIn(from, "rope_theta", 1, 1e12));
    config->rope_theta = static_cast<float>(theta);
    return OkStatus();
  };
  if (json.Has("partial_rotary_factor")) {
    ASSIGN_OR_RETURN(const double part, json.Float("partial_rotary_factor"));
    if (part != 1 && !architecture.partial_rotary)
      return json.Error("partial_rotary_factor", "must be 1: it is not supported");
    const double dims = config->head_dim * part;
    if (!(dims >= 2 && part <= 1) || static_cast<uint32_t>(dims) % 2 != 0)
      return json.Error("partial_rotary_factor", StrCat("is ", part, "; of ", config->head_dim,
                                                        " dimensions an even number must rotate"));
    config->rope_dim = static_cast<uint32_t>(dims);
  }
  if (json.Has("rope_parameters")) {
    ASSIGN_OR_RETURN(const JsonObject parameters, RopeParameters(json, "full_attention"));
    RETURN_IF_ERROR(read_theta(parameters));
    return ReadScaling(json, parameters, config);
  }
  RETURN_IF_ERROR(read_theta(json));
  if (!json.Has("rope_scaling")) return OkStatus();
  ASSIGN_OR_RETURN(const JsonObject scaling, json.Object("rope_scaling"));
  return ReadScaling(json, scaling, config);
}

Status ReadLocalRope(const JsonObject& json, float fallback, ModelConfig* config) {
  config->rope_local_theta = fallback;
  if (json.Has("rope_parameters")) {
    ASSIGN_OR_RETURN(const JsonObject local, RopeParameters(json, "sliding_attention"));
    if (local.Has("rope_type")) {
      ASSIGN_OR_RETURN(const std::string_view type, local.String("rope_type"));
      if (type != "default") {
        return local.Error("rope_type",
                           StrCat("is ", Quote(type), "; only 'default' is supported here"));
      }
    }
    if (!local.Has("rope_theta")) return OkStatus();
    ASSIGN_OR_RETURN(const double theta, FloatIn(local, "rope_theta", 1, 1e12));
    config->rope_local_theta = static_cast<float>(theta);
    return OkStatus();
  }
  if (!json.Has("rope_local_base_freq")) return OkStatus();
  ASSIGN_OR_RETURN(const double theta, FloatIn(json, "rope_local_base_freq", 1, 1e12));
  config->rope_local_theta = static_cast<float>(theta);
  return OkStatus();
}

StatusOr<uint32_t> ReadWindow(const JsonObject& json) {
  constexpr std::string_view kKey = "sliding_window";
  ASSIGN_OR_RETURN(const uint64_t window, json.Uint(kKey));
  if (window >= 1 && window <= kMaxContext) return static_cast<uint32_t>(window);
  return json.Error(kKey, StrCat("is ", window, "; it must be in 1..", kMaxContext));
}

Status ReadWindowOfAllLayers(const JsonObject& json, ModelConfig* config) {
  if (!json.Has("sliding_window")) return OkStatus();
  ASSIGN_OR_RETURN(const uint32_t window, ReadWindow(json));
  SetWindowOfAllLayers(window, config);
  return OkStatus();
}

StatusOr<std::vector<bool>> ReadSlidingLayers(const JsonObject& json, uint32_t num_layers) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> types, json.Strings("layer_types"));
  if (types.size() != num_layers) {
    return json.Error("layer_types",
                      StrCat("has ", types.size(), " entries for ", num_layers, " layers"));
  }
  std::vector<bool> sliding;
  for (const std::string_view type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return json.Error("layer_types", StrCat("has the type ", Quote(type),
                                              "; known: full_attention, sliding_attention"));
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

}  // namespace flotilla::internal
