#include "router/json_reader.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <cmath>
#include <set>
#include <utility>

#include "common/base/status.h"

namespace flotilla {
namespace json = boost::json;
namespace {

// Builds the value, as Boost.JSON's own parser does, and refuses a key that came before.
class UniqueKeyHandler {
 public:
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();

  using Error = json::error_code;

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t n, Error&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(Error&) { return true; }
  bool on_array_end(std::size_t n, Error&) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(json::string_view s, std::size_t, Error&) {
    key_.append(s.data(), s.size());
    stack_.push_chars(s);
    return true;
  }
  bool on_key(json::string_view s, std::size_t, Error& ec) {
    key_.append(s.data(), s.size());
    if (!keys_.back().insert(key_).second) {
      duplicate_ = key_;
      ec = json::error::syntax;
      return false;
    }
    key_.clear();
    stack_.push_key(s);
    return true;
  }
  bool on_string_part(json::string_view s, std::size_t, Error&) {
    stack_.push_chars(s);
    return true;
  }
  bool on_string(json::string_view s, std::size_t, Error&) {
    stack_.push_string(s);
    return true;
  }
  bool on_number_part(json::string_view, Error&) { return true; }
  bool on_int64(std::int64_t i, json::string_view, Error&) {
    stack_.push_int64(i);
    return true;
  }
  bool on_uint64(std::uint64_t u, json::string_view, Error&) {
    stack_.push_uint64(u);
    return true;
  }
  bool on_double(double d, json::string_view, Error&) {
    stack_.push_double(d);
    return true;
  }
  bool on_bool(bool b, Error&) {
    stack_.push_bool(b);
    return true;
  }
  bool on_null(Error&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, Error&) { return true; }
  bool on_comment(json::string_view, Error&) { return true; }

  json::value_stack& stack() { return stack_; }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  json::value_stack stack_;
  std::vector<std::set<std::string, std::less<>>> keys_;
  std::string key_;
  std::optional<std::string> duplicate_;
};

}  // namespace

std::optional<ApiError> ParseJson(std::string_view text, json::value* out) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::basic_parser<UniqueKeyHandler> parser(options);
  parser.handler().stack().reset();
  json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (parser.handler().duplicate().has_value()) {
    return InvalidField(
        parser.handler().duplicate()->substr(0, 64),
        StrCat("The body has the key '", parser.handler().duplicate()->substr(0, 64),
               "' twice in one object."));
  }
  if (ec) {
    return InvalidField(
        "", StrCat("The body is not valid JSON: ", ec.message(), " at byte ", used, "."));
  }
  if (used < text.size()) {
    return InvalidField("", StrCat("The body is not valid JSON: extra data at byte ", used, "."));
  }
  *out = parser.handler().stack().release();
  return std::nullopt;
}

std::optional<int64_t> AsInt(const json::value& value, int64_t min, int64_t max) {
  int64_t number = 0;
  if (value.is_int64()) {
    number = value.get_int64();
  } else if (value.is_double()) {
    const double d = value.get_double();
    if (!(std::abs(d) <= 9007199254740992.0) || d != std::floor(d)) return std::nullopt;
    number = static_cast<int64_t>(d);
  } else {
    return std::nullopt;  // is_uint64 is above INT64_MAX
  }
  if (number < min || number > max) return std::nullopt;
  return number;
}

const json::value* FieldReader::Find(std::string_view name) const {
  if (error_.has_value()) return nullptr;
  const json::value* value = object_.if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::Fail(std::string_view name, std::string_view message) {
  if (error_.has_value()) return;
  const std::string full = StrCat(prefix_, name);
  error_ = InvalidField(full, StrCat("'", full, "' ", std::string(message), "."));
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t min, int64_t max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> number = AsInt(*value, min, max);
  if (!number.has_value()) Fail(name, StrCat("must be an integer from ", min, " to ", max));
  return number;
}

std::optional<uint64_t> FieldReader::Uint64(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  const std::optional<int64_t> number = AsInt(*value, INT64_MIN, INT64_MAX);
  if (number.has_value()) return static_cast<uint64_t>(*number);
  Fail(name, "must be an integer of 64 bits");
  return std::nullopt;
}

std::optional<double> FieldReader::Number(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return std::clamp(value->to_number<double>(), -1e9, 1e9);
  Fail(name, "must be a number");
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  Fail(name, "must be true or false");
  return std::nullopt;
}

std::optional<std::string_view> FieldReader::String(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const json::string& text = value->get_string();
    return std::string_view(text.data(), text.size());
  }
  Fail(name, "must be a string");
  return std::nullopt;
}

std::optional<std::vector<int32_t>> FieldReader::Ints(std::string_view name, size_t max_count,
                                                      int64_t min, int64_t max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    Fail(name, "must be an array of integers");
    return std::nullopt;
  }
  const json::array& array = value->get_array();
  if (array.size() > max_count) {
    Fail(name, StrCat("may have at most ", max_count, " entries, not ", array.size()));
    return std::nullopt;
  }
  std::vector<int32_t> numbers;
  numbers.reserve(array.size());
  for (const json::value& entry : array) {
    const std::optional<int64_t> number = AsInt(entry, min, max);
    if (!number.has_value()) {
      Fail(name, StrCat("must have integers from ", min, " to ", max));
      return std::nullopt;
    }
    numbers.push_back(static_cast<int32_t>(*number));
  }
  return numbers;
}

const json::object* FieldReader::Object(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  Fail(name, "must be an object");
  return nullptr;
}

}  // namespace flotilla
