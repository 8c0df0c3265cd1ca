#include "router/answer/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "router/answer/held_suffix.h"

namespace flotilla {
namespace {

constexpr std::string_view kLlamaTag = "<|python_tag|>";

std::string_view TagOf(ToolSyntax syntax) {
  if (syntax == ToolSyntax::kHermes || syntax == ToolSyntax::kQwen3Coder) return kCallTag;
  return syntax == ToolSyntax::kLlama3 ? kLlamaTag : std::string_view();
}

std::string_view SeparatorsOf(ToolSyntax syntax) {
  if (syntax == ToolSyntax::kLlama3) return ";";
  return syntax == ToolSyntax::kList ? "[,]" : std::string_view();
}

}  // namespace

ToolCallParser::ToolCallParser(const ToolCallOptions& options)
    : options_(options),
      tag_(TagOf(options.syntax)),
      other_tag_(options.syntax == ToolSyntax::kQwen3Coder ? kFunctionTag : std::string_view()),
      separators_(SeparatorsOf(options.syntax)),
      mode_(separators_.empty() ? Mode::kText : Mode::kBeforeCall) {}

void ToolCallParser::Push(std::string_view text, AnswerText* out) {
  if (options_.syntax == ToolSyntax::kNone) {
    out->content.append(text);
  } else if (options_.syntax == ToolSyntax::kArguments) {
    num_calls_ = 1;
    TellCall(std::string(text), out);
  } else {
    pending_.append(text);
    while (Step(out)) {
    }
  }
}

void ToolCallParser::Finish(AnswerText* out) {
  if (options_.syntax == ToolSyntax::kArguments && !call_told_) Push("", out);
  if (call_ != nullptr && call_told_) {
    std::string arguments;
    call_->Finish(&arguments);
    TellCall(std::move(arguments), out);
  }
  if (call_ != nullptr && !call_->begun()) TellText(StrCat(opener_, call_->raw()), out);
  const bool between = mode_ == Mode::kAfterTag || mode_ == Mode::kBeforeCall;
  if (!between || num_calls_ == 0) TellText(pending_, out);
  if (num_calls_ == 0 && options_.syntax != ToolSyntax::kList) out->content.append(space_);
  pending_.clear();
}

// False: more text is needed.
bool ToolCallParser::Step(AnswerText* out) {
  switch (mode_) {
    case Mode::kText:
      return StepText(out);
    case Mode::kBeforeCall:
      return StepBeforeCall();
    case Mode::kCall:
      return StepCall(out);
    case Mode::kAfterTag:
      return StepAfterTag();
    case Mode::kOnlyText:
      TellText(pending_, out);
      pending_.clear();
      return false;
  }
  return false;
}

bool ToolCallParser::StepText(AnswerText* out) {
  const std::string_view rest = std::string_view(pending_).substr(LeadingSpace(pending_));
  if (options_.first && !rest.starts_with(tag_.substr(0, rest.size()))) {
    mode_ = Mode::kOnlyText;
    return true;
  }
  const size_t tagged = FindTag(tag_), untagged = FindTag(other_tag_);
  const size_t at = std::min(tagged, untagged);
  if (at == std::string::npos) {
    const size_t held = std::max(HeldSuffix(pending_, tag_), HeldSuffix(pending_, other_tag_));
    const size_t tell = pending_.size() - held;
    TellText(std::string_view(pending_).substr(0, tell), out);
    pending_.erase(0, tell);
    return false;
  }
  const std::string_view opener = at == tagged ? tag_ : std::string_view();
  TellText(std::string_view(pending_).substr(0, at), out);
  pending_.erase(0, at + opener.size());
  BeginCall(opener);
  return true;
}

// Calls without tags of their own: at the very beginning, and after each other.
bool ToolCallParser::StepBeforeCall() {
  size_t at = 0;
  while (at < pending_.size() &&
         (IsJsonSpace(pending_[at]) || separators_.find(pending_[at]) != separators_.npos))
    ++at;
  if (at == pending_.size()) return false;
  if (pending_[at] == '{') {
    space_.append(pending_, 0, at);
    pending_.erase(0, at);
    BeginCall("");
  } else {
    mode_ = Mode::kText;
  }
  return true;
}

bool ToolCallParser::StepCall(AnswerText* out) {
  std::string arguments;
  const bool dropped = num_calls_ >= options_.max_calls && !call_told_;
  pending_.erase(0, call_->Push(pending_, &arguments));
  if (call_->begun() && !dropped) {
    if (!call_told_) ++num_calls_;
    TellCall(std::move(arguments), out);
  }
  if (call_->state() == CallScanner::State::kOpen) return false;
  if (call_->begun()) {
    space_.clear();
    mode_ = separators_.empty() ? Mode::kAfterTag : Mode::kBeforeCall;
  } else {
    TellText(StrCat(opener_, call_->raw()), out);
    mode_ = Mode::kText;
  }
  call_.reset();
  return true;
}

// A call of Hermes' ends with a tag, which some models forget. Others write a brace too many.
bool ToolCallParser::StepAfterTag() {
  size_t at = 0;
  while (at < pending_.size() && (IsJsonSpace(pending_[at]) || pending_[at] == '}')) ++at;
  pending_.erase(0, at);
  if (pending_.size() < kCallEnd.size() && kCallEnd.starts_with(pending_)) return false;
  if (pending_.starts_with(kCallEnd)) pending_.erase(0, kCallEnd.size());
  mode_ = Mode::kText;
  return true;
}

void ToolCallParser::BeginCall(std::string_view opener) {
  opener_ = opener;
  // Behind a tag anything is a call.
  const bool any = opener == kCallTag;
  const std::vector<std::string>* const names = any ? nullptr : &options_.names;
  if (options_.syntax == ToolSyntax::kQwen3Coder) {
    call_ = std::make_unique<TaggedCallScanner>(names, options_.parameters);
  } else {
    call_ = std::make_unique<JsonCallScanner>(names);
  }
  call_told_ = false;
  mode_ = Mode::kCall;
}

void ToolCallParser::TellCall(std::string arguments, AnswerText* out) {
  after_call_ = true;
  ToolCallPiece piece;
  piece.index = num_calls_ - 1;
  piece.arguments = std::move(arguments);
  piece.at = out->content.size();
  if (!std::exchange(call_told_, true))
    piece.name = call_ != nullptr ? call_->name() : options_.names[0];
  else if (piece.arguments.empty())
    return;
  out->calls.push_back(std::move(piece));
}

// Holds white space back: it is not told if a call comes next, or came before.
void ToolCallParser::TellText(std::string_view text, AnswerText* out) {
  if (options_.syntax == ToolSyntax::kList) return;
  size_t end = text.size();
  while (end > 0 && IsJsonSpace(text[end - 1])) --end;
  if (end > 0) {
    size_t begin = 0;
    while (after_call_ && IsJsonSpace(text[begin])) ++begin;
    if (!after_call_) out->content.append(space_);
    out->content.append(text.substr(begin, end - begin));
    after_call_ = false;
    space_.clear();
  }
  space_.append(text.substr(end));
}

}  // namespace flotilla
