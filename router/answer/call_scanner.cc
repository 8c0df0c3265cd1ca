#include "router/answer/call_scanner.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <utility>

#include "common/base/strict_json.h"
#include "router/answer/held_suffix.h"

namespace flotilla {
namespace {

// Empty if `text` is no JSON string.
std::string StringOf(std::string_view text) {
  boost::json::value value;
  StrictJsonError error;
  if (!ParseStrictJson(text, &value, &error) || !value.is_string()) return "";
  return std::string(value.get_string());
}

}  // namespace

size_t CallScanner::Push(std::string_view text, std::string* arguments) {
  size_t used = 0;
  while (used < text.size() && state_ == State::kOpen) {
    if (!begun_) raw_.push_back(text[used]);
    Take(text[used++], arguments);
  }
  if (state_ == State::kFailed) {
    --used;
    if (!begun_) raw_.pop_back();
  }
  return used;
}

bool JsonEnd::Take(char c) {
  if (in_string_) {
    if (std::exchange(escaped_, !escaped_ && c == '\\') || c != '"') return false;
    in_string_ = false;
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  return depth_ == 0 && !in_string_;
}

void JsonCallScanner::Take(char c, std::string* arguments) {
  if (at_ == At::kInKey) {
    key_.push_back(c);
    if (end_.Take(c)) at_ = At::kColon;
  } else if (at_ == At::kInValue) {
    // A number ends at what follows it.
    const bool ends = scalar_ && (c == ',' || c == '}' || IsJsonSpace(c));
    if (!ends) return TakeValue(c, arguments);
    EndValue(arguments);
    if (state() == State::kOpen) Take(c, arguments);
  } else if (IsJsonSpace(c)) {
    return;
  } else if (at_ == At::kValue) {
    BeginValue(c);
    if (state() == State::kOpen) TakeValue(c, arguments);
  } else if (c == '}' && (at_ == At::kFirstKey || at_ == At::kComma)) {
    EndObject(arguments);
  } else {
    TakeStructure(c);
  }
}

// What stands between keys and values.
void JsonCallScanner::TakeStructure(char c) {
  if (at_ == At::kBegin && c == '{') {
    at_ = At::kFirstKey;
  } else if ((at_ == At::kFirstKey || at_ == At::kKey) && c == '"') {
    key_.assign(1, c);
    end_.Take(c);
    at_ = At::kInKey;
  } else if (at_ == At::kColon && c == ':') {
    at_ = At::kValue;
  } else if (at_ == At::kComma && c == ',') {
    at_ = At::kKey;
  } else {
    Fail();
  }
}

void JsonCallScanner::BeginValue(char c) {
  const std::string key = StringOf(key_);
  is_arguments_ = (key == "arguments" || key == "parameters") && !has_arguments_;
  if (is_arguments_ && c != '{') Fail();
  if (key == "name" && name_.empty() && c != '"') Fail();
  if (c == '}' || c == ',' || c == ']') Fail();
  scalar_ = c != '{' && c != '[' && c != '"';
  value_.clear();
  at_ = At::kInValue;
}

void JsonCallScanner::TakeValue(char c, std::string* arguments) {
  if (is_arguments_ && !name_.empty()) {
    Begin();
    arguments->push_back(c);
  } else {
    value_.push_back(c);
  }
  if (!scalar_ && end_.Take(c)) EndValue(arguments);
}

void JsonCallScanner::EndValue(std::string* arguments) {
  at_ = At::kComma;
  if (is_arguments_) {
    has_arguments_ = true;
    is_arguments_ = false;
    if (name_.empty()) arguments_ = std::exchange(value_, {});
    return;
  }
  if (!name_.empty() || StringOf(key_) != "name") return;
  name_ = StringOf(value_);
  const bool known = names_ == nullptr || std::ranges::find(*names_, name_) != names_->end();
  if (name_.empty() || !known) {
    Fail();
    return;
  }
  if (!has_arguments_) return;
  Begin();
  arguments->append(arguments_);
}

void JsonCallScanner::EndObject(std::string* arguments) {
  if (name_.empty()) {
    Fail();
    return;
  }
  Begin();
  if (!has_arguments_) arguments->append("{}");
  Done();
}

void CallScanner::Begin() {
  begun_ = true;
  raw_.clear();
}

}  // namespace flotilla
