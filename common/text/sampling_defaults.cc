#include "common/text/sampling_defaults.h"

#include <cmath>
#include <type_traits>
#include <variant>

#include "common/checkpoint/json_object.h"

namespace flotilla {
namespace {

// Each that is there: has(name), value(name).
template <typename Has, typename Value>
SamplingDefaults Collect(const Has& has, const Value& value) {
  SamplingDefaults out;
  const auto take = [&](const char* name, double least, double most, auto* field) {
    if (!has(name)) return;
    using Field = typename std::decay_t<decltype(*field)>::value_type;
    const StatusOr<double> number = value(name);
    const bool whole =
        !std::is_integral_v<Field> || (number.ok() && *number == std::floor(*number));
    if (number.ok() && *number >= least && *number <= most && whole) {
      *field = static_cast<Field>(*number);
    } else {
      out.left_out.push_back(name);
    }
  };
  take("temperature", 0, 2, &out.temperature);
  take("top_p", 1e-6, 1, &out.top_p);
  take("min_p", 0, 1, &out.min_p);
  take("repetition_penalty", 0.01f, 2, &out.repetition_penalty);
  take("top_k", -1, INT32_MAX, &out.top_k);
  return out;
}

std::string GgufKey(std::string_view name) {
  if (name == "temperature") name = "temp";
  if (name == "repetition_penalty") name = "penalty_repeat";
  return StrCat("general.sampling.", name);
}

StatusOr<double> GgufNumber(const GgufFile::Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&value)) return static_cast<double>(*number);
  return absl::InvalidArgumentError("no number");
}

}  // namespace

StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view generation_config) {
  if (generation_config.empty()) return SamplingDefaults();
  ASSIGN_OR_RETURN(
      const boost::json::value document,
      internal::ParseJsonObject("generation_config.json", generation_config, 16u << 20));
  const internal::JsonObject config(&document.get_object(), "generation_config.json: ");
  return Collect([&](const char* name) { return config.Has(name); },
                 [&](const char* name) { return config.Float(name); });
}

SamplingDefaults SamplingDefaultsOf(const GgufFile& gguf) {
  const auto& keys = gguf.metadata();
  return Collect([&](const char* name) { return keys.contains(GgufKey(name)); },
                 [&](const char* name) { return GgufNumber(keys.find(GgufKey(name))->second); });
}

}  // namespace flotilla
