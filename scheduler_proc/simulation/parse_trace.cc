// ParseTrace.
#include <cmath>
#include <map>
#include <optional>

#include "boost/json.hpp"
#include "scheduler_proc/simulation/workload.h"

namespace flotilla {
namespace {

namespace json = boost::json;

constexpr double kMaxSeconds = 1e8;
constexpr double kMaxTokens = 1 << 24;

// One line of a trace.
class Line {
 public:
  Line(size_t number, const json::object& object) : number_(number), object_(object) {}

  double Number(const char* name, double least, double most, std::optional<double> absent) {
    const json::value* value = object_.if_contains(name);
    if (value == nullptr && absent.has_value()) return *absent;
    const double got = value != nullptr && value->is_number() ? value->to_number<double>() : NAN;
    if (got >= least && got <= most) return got;
    Refuse(name, StrCat("must be a number from ", least, " to ", most));
    return least;
  }
  std::string String(const char* name) {
    const json::value* value = object_.if_contains(name);
    if (value == nullptr) return "";
    if (value->is_string()) return std::string(value->as_string());
    Refuse(name, "must be a string");
    return "";
  }
  void Refuse(const char* name, const std::string& why) {
    if (status_.ok())
      status_ = absl::InvalidArgumentError(StrCat("line ", number_, ": '", name, "' ", why));
  }
  const Status& status() const { return status_; }

 private:
  const size_t number_;
  const json::object& object_;
  Status status_;
};

}  // namespace

StatusOr<std::vector<SimRequest>> ParseTrace(std::string_view text) {
  std::vector<SimRequest> requests;
  std::map<std::string, uint64_t> prefixes;
  size_t number = 0;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    ++number;
    if (part.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    boost::system::error_code error;
    const json::value value = json::parse(part, error);
    if (error || !value.is_object()) {
      return absl::InvalidArgumentError(StrCat("line ", number, ": is no JSON object"));
    }
    Line line(number, value.as_object());
    SimRequest& request = requests.emplace_back();
    request.arrival_ns = static_cast<int64_t>(line.Number("at", 0, kMaxSeconds, {}) * 1e9);
    request.prompt_tokens = static_cast<uint32_t>(line.Number("prompt_tokens", 1, kMaxTokens, {}));
    request.output_tokens = static_cast<uint32_t>(line.Number("output_tokens", 1, kMaxTokens, {}));
    request.max_new_tokens = static_cast<uint32_t>(
        line.Number("max_tokens", request.output_tokens, kMaxTokens, request.output_tokens));
    const std::string prefix = line.String("prefix");
    if (!prefix.empty())
      request.prefix = prefixes.emplace(prefix, prefixes.size() + 1).first->second;
    request.prefix_tokens = static_cast<uint32_t>(line.Number(
        "prefix_tokens", 0, request.prompt_tokens, prefix.empty() ? 0.0 : std::optional<double>()));
    request.tenant = line.String("tenant");
    request.priority = static_cast<int32_t>(line.Number("priority", -100, 100, 0));
    if (requests.size() > 1 && request.arrival_ns < requests[requests.size() - 2].arrival_ns) {
      line.Refuse("at", "must not be before the line above");
    }
    RETURN_IF_ERROR(line.status());
  }
  if (requests.empty()) return absl::InvalidArgumentError("it has no request");
  return requests;
}

}  // namespace flotilla
