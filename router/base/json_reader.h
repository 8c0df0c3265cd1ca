// Strict JSON of clients, and typed reading of an object's fields with errors that name the field.
//
// ParseJson is common/base's strict parser. FieldReader keeps the first error and then returns
// "absent" for everything, so that a handler reads all its fields and checks once. null is the same
// as absent. An integral number written as 16.0 is an integer. Threads: one at a time. Errors:
// ApiError with code INVALID_ARGUMENT.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/base/api_error.h"

namespace flotilla {

std::optional<ApiError> ParseJson(std::string_view text, boost::json::value* out);

class FieldReader {
 public:
  // `prefix` goes before names in errors ("stream_options.").
  explicit FieldReader(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null if absent or JSON null.
  const boost::json::value* Find(std::string_view name) const;
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<uint64_t> Uint64(std::string_view name);
  // Any number, drawn into -1e9 … 1e9: ranges are generate_check's business.
  std::optional<double> Number(std::string_view name);
  std::optional<bool> Bool(std::string_view name);
  // The bytes stay in the object.
  std::optional<std::string_view> String(std::string_view name);
  std::optional<std::vector<int32_t>> Ints(std::string_view name, size_t max_count, int64_t min,
                                           int64_t max);
  const boost::json::object* Object(std::string_view name);

  void Fail(std::string_view name, std::string_view message);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void WrongType(std::string_view name, std::string_view must, const boost::json::value& value);

  const boost::json::object& object_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

// Whether a value says that nothing is wished: null, false, 0 and empty.
bool IsNeutral(const boost::json::value& value);

// The value as an integer in [min, max]; nullopt if it is anything else.
std::optional<int64_t> AsInt(const boost::json::value& value, int64_t min, int64_t max);

}  // namespace flotilla
