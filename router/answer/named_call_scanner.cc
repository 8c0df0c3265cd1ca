#include "router/answer/named_call_scanner.h"

#include "absl/strings/ascii.h"
#include "router/answer/held_suffix.h"

namespace flotilla {
namespace {

constexpr std::string_view kIdTag = "[CALL_ID]";
constexpr std::string_view kArgumentsTag = "[ARGS]";

}  // namespace

bool IsToolNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

void NamedCallScanner::Take(char c, std::string* arguments) {
  if (at_ != At::kArguments) {
    if (c != '{' || name_.empty() || at_ == At::kTag || at_ == At::kId) {
      if (!TakeHead(c)) Fail();
      return;
    }
    at_ = At::kArguments;
    Begin();
  }
  arguments->push_back(c);
  if (end_.Take(c)) Done();
}

// False: it is no call.
bool NamedCallScanner::TakeHead(char c) {
  if (at_ == At::kTag) return TakeTag(c);
  if (IsJsonSpace(c)) {
    if (at_ == At::kName && !name_.empty()) at_ = At::kBeforeArguments;
    return at_ != At::kId;
  }
  if (c == '[' && !name_.empty()) {
    at_ = At::kTag;
    tag_.assign(1, c);
    return true;
  }
  if (at_ == At::kName && IsToolNameCharacter(c)) name_.push_back(c);
  return at_ != At::kBeforeArguments && IsToolNameCharacter(c);
}

bool NamedCallScanner::TakeTag(char c) {
  tag_.push_back(c);
  if (tag_ == kIdTag) at_ = At::kId;
  if (tag_ == kArgumentsTag) at_ = At::kBeforeArguments;
  return kIdTag.starts_with(tag_) || kArgumentsTag.starts_with(tag_);
}

}  // namespace flotilla
