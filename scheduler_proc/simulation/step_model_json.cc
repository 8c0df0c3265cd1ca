// A StepModel as a file of JSON.
#include <algorithm>

#include "boost/json.hpp"
#include "scheduler_proc/simulation/step_model.h"

namespace flotilla {
namespace {

namespace json = boost::json;

}  // namespace

std::string ToJson(const StepModel& model) {
  json::object ns;
  for (size_t i = 0; i < StepModel::kTerms; ++i) ns[StepModel::kNames[i]] = model.ns[i];
  const json::object object = {{"version", 1},
                               {"ns", ns},
                               {"gap_ns", model.gap_ns},
                               {"dispatch_ns", model.dispatch_ns},
                               {"result_ns", model.result_ns},
                               {"num_steps", model.num_steps},
                               {"error", model.error},
                               {"num_pages", model.num_pages},
                               {"page_size", model.page_size},
                               {"context_length", model.context_length},
                               {"vocab_size", model.vocab_size}};
  return json::serialize(object) + "\n";
}

StatusOr<StepModel> ParseStepModel(std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  const json::object& object = value.as_object();
  StepModel model;
  std::string missing;
  // Finite, and what an int64 holds a million times.
  const auto number = [&](const json::object& in, const char* name) {
    const json::value* found = in.if_contains(name);
    const double got = found != nullptr && found->is_number() ? found->to_number<double>() : -1;
    if (got >= 0 && got < 1e12) return got;
    if (missing.empty()) missing = name;
    return 0.0;
  };
  const json::value* ns = object.if_contains("ns");
  if (ns == nullptr || !ns->is_object())
    return absl::InvalidArgumentError("'ns' must be an object");
  for (size_t i = 0; i < StepModel::kTerms; ++i) {
    model.ns[i] = number(ns->as_object(), StepModel::kNames[i]);
  }
  model.gap_ns = static_cast<int64_t>(number(object, "gap_ns"));
  model.dispatch_ns = static_cast<int64_t>(number(object, "dispatch_ns"));
  model.result_ns = static_cast<int64_t>(number(object, "result_ns"));
  model.num_steps = static_cast<uint64_t>(number(object, "num_steps"));
  model.error = number(object, "error");
  const auto small = [&](const char* name) {
    return static_cast<uint32_t>(std::min(number(object, name), 4e9));
  };
  model.num_pages = small("num_pages");
  model.page_size = small("page_size");
  model.context_length = small("context_length");
  model.vocab_size = small("vocab_size");
  if (missing.empty()) return model;
  return absl::InvalidArgumentError(StrCat("'", missing, "' must be a number from 0 on"));
}

}  // namespace flotilla
