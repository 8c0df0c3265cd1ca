#include "common/base/strict_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"

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
  bool on_number_part(json::string_view s, Error&) {
    number_.append(s.data(), s.size());
    return true;
  }
  bool on_int64(std::int64_t i, json::string_view, Error&) {
    number_.clear();
    stack_.push_int64(i);
    return true;
  }
  bool on_uint64(std::uint64_t u, json::string_view, Error&) {
    number_.clear();
    stack_.push_uint64(u);
    return true;
  }
  // Boost's own conversion is off by the last bit of some; the nearest double is what is meant.
  bool on_double(double d, json::string_view s, Error&) {
    number_.append(s.data(), s.size());
    std::from_chars(number_.data(), number_.data() + number_.size(), d);
    number_.clear();
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
  std::string number_;
  std::optional<std::string> duplicate_;
};

}  // namespace

bool ParseStrictJson(std::string_view text, json::value* out, StrictJsonError* error,
                     size_t max_depth) {
  json::parse_options options;
  options.max_depth = max_depth;
  json::basic_parser<UniqueKeyHandler> parser(options);
  parser.handler().stack().reset();
  json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (parser.handler().duplicate().has_value()) {
    error->duplicate_key = *parser.handler().duplicate();
    error->message = absl::StrCat("the key '", error->duplicate_key.substr(0, 64),
                                  "' is there twice in one object");
    return false;
  }
  if (ec || used < text.size()) {
    error->message = absl::StrCat(ec ? ec.message() : std::string("extra data"), " at byte ", used);
    return false;
  }
  *out = parser.handler().stack().release();
  return true;
}

}  // namespace flotilla
