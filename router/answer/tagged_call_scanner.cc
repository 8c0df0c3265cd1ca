#include "router/answer/tagged_call_scanner.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/base/strict_json.h"
#include "router/answer/held_suffix.h"
#include "router/answer/tool_syntax.h"

namespace flotilla {
namespace {

constexpr std::string_view kNextParameter = "\n<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kFunctionEnd = "</function>";

std::string AsString(std::string_view text) {
  return boost::json::serialize(boost::json::value(text));
}

// Within an object.
bool IsJson(std::string_view text) {
  boost::json::value value;
  StrictJsonError error;
  return ParseStrictJson(text, &value, &error, kMaxJsonDepth - 1);
}

std::string_view Trim(std::string_view text) {
  text.remove_prefix(LeadingSpace(text));
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  return text;
}

// A value's text as JSON. The template puts it on lines of its own.
std::string ValueOf(std::string_view text, ParameterType type) {
  const std::string_view word = Trim(text);
  if (type != ParameterType::kText && (word == "null" || word == "None")) return "null";
  if (type == ParameterType::kJson) {
    if (word == "True") return "true";
    if (word == "False") return "false";
    if (IsJson(word)) return std::string(word);
  }
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return AsString(text);
}

// Without `end`, if it is there, and white space behind it.
std::string_view Without(std::string_view text, std::string_view end) {
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  if (text.ends_with(end)) text.remove_suffix(end.size());
  return text;
}

ParameterType TypeOf(const ToolParameterTypes& tools, std::string_view tool,
                     std::string_view parameter) {
  const auto types = tools.find(tool);
  if (types == tools.end()) return ParameterType::kText;
  const auto type = types->second.find(parameter);
  return type == types->second.end() ? ParameterType::kText : type->second;
}

}  // namespace

void TaggedCallScanner::Take(char c, std::string* arguments) {
  switch (at_) {
    case At::kBegin:
      if (taken_.empty() && IsJsonSpace(c)) return;
      if (c != kFunctionTag[taken_.size()]) return Fail();
      taken_.push_back(c);
      if (taken_ != kFunctionTag) return;
      at_ = At::kName;
      return taken_.clear();
    case At::kName:
      return TakeName(c);
    case At::kAfterName:
      return TakeAfterName(c, arguments);
    case At::kBetween:
      taken_.push_back(c);
      return TakeBetween(arguments);
    case At::kKey:
      if (c != '>') return taken_.push_back(c);
      key_ = std::string(Trim(taken_));
      taken_.clear();
      at_ = At::kValue;
      return;
    case At::kValue:
      taken_.push_back(c);
      return TakeValue(arguments);
  }
}

void TaggedCallScanner::TakeName(char c) {
  if (c == '<' || c == '\n') return Fail();
  if (c != '>') return taken_.push_back(c);
  std::string_view name = Trim(taken_);
  if (name.size() > 2 && name.starts_with('"') && name.ends_with('"'))
    name = name.substr(1, name.size() - 2);
  const bool known = names_ == nullptr || std::ranges::find(*names_, name) != names_->end();
  if (name.empty() || !known) return Fail();
  name_ = std::string(name);
  taken_.clear();
  at_ = At::kAfterName;
}

void TaggedCallScanner::TakeAfterName(char c, std::string* arguments) {
  if (taken_.empty() && IsJsonSpace(c)) return;
  taken_.push_back(c);
  const auto begins = [&](std::string_view tag) { return tag.starts_with(taken_); };
  if (!begins(kParameterTag) && !begins(kFunctionEnd) && !begins(kCallEnd)) return Fail();
  if (taken_ != kParameterTag && taken_ != kFunctionEnd && taken_ != kCallEnd) return;
  Begin();
  arguments->push_back('{');
  TakeBetween(arguments);
}

void TaggedCallScanner::TakeBetween(std::string* arguments) {
  at_ = At::kBetween;
  if (taken_.ends_with(kParameterTag)) {
    at_ = At::kKey;
    taken_.clear();
  } else if (taken_.ends_with(kFunctionEnd) || taken_.ends_with(kCallEnd)) {
    Close(arguments);
  } else if (taken_.size() > kCallEnd.size()) {
    taken_.erase(0, 1);
  }
}

void TaggedCallScanner::TakeValue(std::string* arguments) {
  const std::string_view taken = taken_;
  if (taken.ends_with(kParameterEnd)) {
    TellValue(Without(taken, kParameterEnd), arguments);
    at_ = At::kBetween;
  } else if (taken.ends_with(kNextParameter)) {
    TellValue(taken.substr(0, taken.size() - kParameterTag.size()), arguments);
    at_ = At::kKey;
  } else if (taken.ends_with(kCallEnd)) {
    TellValue(Without(Without(taken, kCallEnd), kFunctionEnd), arguments);
    Close(arguments);
  } else {
    return;
  }
  taken_.clear();
}

void TaggedCallScanner::TellValue(std::string_view value, std::string* arguments) {
  if (!told_.insert(key_).second) return;
  if (told_.size() > 1) arguments->append(", ");
  arguments->append(AsString(key_));
  arguments->append(": ");
  arguments->append(ValueOf(value, TypeOf(types_, name_, key_)));
}

void TaggedCallScanner::Close(std::string* arguments) {
  arguments->push_back('}');
  Done();
}

// A value that was cut is not told: it may lack its most important word.
void TaggedCallScanner::Finish(std::string* arguments) {
  if (state() == State::kOpen && at_ == At::kBetween) Close(arguments);
}

}  // namespace flotilla
