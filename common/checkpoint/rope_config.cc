#include "common/checkpoint/rope_config.h"

#include <cmath>
#include <numbers>

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

Status ReadScaling(const JsonObject& scaling, ModelConfig* config) {
  const char* const key = scaling.Has("rope_type") ? "rope_type" : "type";
  std::string_view type = "default";
  if (scaling.Has(key)) {
    ASSIGN_OR_RETURN(type, scaling.String(key));
  }
  if (type == "default") return OkStatus();
  if (type != "linear" && type != "llama3") {
    return scaling.Error(key, StrCat("is ", Quote(type), "; supported: default, linear, llama3"));
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

Status ReadRope(const JsonObject& json, double fallback, ModelConfig* config) {
  config->rope_theta = static_cast<float>(fallback);
  const auto read_theta = [&](const JsonObject& from) -> Status {
    if (!from.Has("rope_theta")) return OkStatus();
    ASSIGN_OR_RETURN(const double theta, FloatIn(from, "rope_theta", 1, 1e12));
    config->rope_theta = static_cast<float>(theta);
    return OkStatus();
  };
  if (json.Has("partial_rotary_factor")) {
    ASSIGN_OR_RETURN(const double part, json.Float("partial_rotary_factor"));
    if (part != 1) return json.Error("partial_rotary_factor", "must be 1: it is not supported");
  }
  if (json.Has("rope_parameters")) {
    ASSIGN_OR_RETURN(const JsonObject parameters, RopeParameters(json, "full_attention"));
    RETURN_IF_ERROR(read_theta(parameters));
    return ReadScaling(parameters, config);
  }
  RETURN_IF_ERROR(read_theta(json));
  if (!json.Has("rope_scaling")) return OkStatus();
  ASSIGN_OR_RETURN(const JsonObject scaling, json.Object("rope_scaling"));
  return ReadScaling(scaling, config);
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
