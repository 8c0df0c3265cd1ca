#include "router/answer/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "router/answer/held_suffix.h"
#include "router/answer/named_call_scanner.h"

namespace flotilla {
namespace {

// What is passed over between a tag and its calls, a list of which Llama writes none; and between
// calls and behind them, where some models write a brace too many.
bool IsBeforeCall(char c) { return IsJsonSpace(c) || c == '['; }
bool IsAfterCall(char c) { return IsJsonSpace(c) || c == ',' || c == ';' || c == ']' || c == '}'; }

size_t CountLeading(std::string_view text, bool (*is)(char)) {
  return static_cast<size_t>(std::ranges::find_if_not(text, is) - text.begin());
}

bool BeginsUntagged(ToolSyntax syntax) {
  return syntax == ToolSyntax::kLlama3 || syntax == ToolSyntax::kList;
}

}  // namespace

ToolCallParser::ToolCallParser(const ToolCallOptions& options)
    : options_(options),
      tags_(TagsOf(options.syntax)),
      mode_(BeginsUntagged(options.syntax) ? Mode::kBeforeCall : Mode::kText) {}

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
  TellText(opener_, out);
  if (call_ != nullptr && !call_->begun()) TellText(call_->raw(), out);
  if (mode_ != Mode::kAfterCall) TellText(pending_, out);
  if (num_calls_ == 0) out->content.append(space_);
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
    case Mode::kAfterCall:
      return StepAfterCall();
    case Mode::kOnlyText:
      TellText(pending_, out);
      pending_.clear();
      return false;
  }
  return false;
}

bool ToolCallParser::StepText(AnswerText* out) {
  const std::string_view text = pending_, rest = text.substr(LeadingSpace(text));
  const auto may_begin = [&](std::string_view tag) {
    return rest.starts_with(tag.substr(0, rest.size()));
  };
  if (options_.first && std::ranges::none_of(tags_.begin, may_begin)) {
    mode_ = Mode::kOnlyText;
    return true;
  }
  size_t at = std::string_view::npos, held = 0;
  std::string_view found;
  const auto look_for = [&](std::string_view tag, std::string_view opener) {
    const size_t here = tag.empty() ? text.npos : text.find(tag);
    if (here < at) found = opener;
    at = std::min(at, here);
    held = std::max(held, HeldSuffix(text, tag));
  };
  for (const std::string_view tag : tags_.begin) look_for(tag, tag);
  look_for(tags_.forgotten, "");
  const bool is_call = at != text.npos;
  if (!is_call) at = text.size() - held;
  TellText(text.substr(0, at), out);
  pending_.erase(0, at + found.size());
  if (!is_call) return false;
  opener_ = found;
  in_list_ = found.ends_with('[');
  any_name_ = !found.empty() && options_.syntax != ToolSyntax::kLlama3;
  mode_ = Mode::kBeforeCall;
  return true;
}

bool ToolCallParser::StepBeforeCall() {
  const bool may_be_list = options_.syntax != ToolSyntax::kLlama3;
  const size_t skipped = CountLeading(pending_, may_be_list ? IsBeforeCall : IsJsonSpace);
  in_list_ =
      in_list_ || std::string_view(pending_).substr(0, skipped).find('[') != std::string::npos;
  opener_.append(pending_, 0, skipped);
  pending_.erase(0, skipped);
  if (pending_.empty()) return false;
  call_ = NewScanner();
  call_told_ = false;
  mode_ = Mode::kCall;
  return true;
}

bool ToolCallParser::StepCall(AnswerText* out) {
  std::string arguments;
  const bool dropped = num_calls_ >= options_.max_calls && !call_told_;
  pending_.erase(0, call_->Push(pending_, &arguments));
  if (call_->begun()) opener_.clear();
  if (call_->begun() && !dropped) {
    if (!call_told_) ++num_calls_;
    TellCall(std::move(arguments), out);
  }
  if (call_->state() == CallScanner::State::kOpen) return false;
  if (call_->begun()) {
    space_.clear();
    mode_ = Mode::kAfterCall;
  } else {
    TellText(StrCat(std::exchange(opener_, ""), call_->raw()), out);
    mode_ = Mode::kText;
  }
  call_.reset();
  return true;
}

// In a list, and with Llama, another call may follow without a tag of its own; models forget the
// tag that ends them.
bool ToolCallParser::StepAfterCall() {
  const size_t skipped = CountLeading(pending_, IsAfterCall);
  in_list_ =
      in_list_ && std::string_view(pending_).substr(0, skipped).find(']') == std::string::npos;
  pending_.erase(0, skipped);
  const std::string_view text = pending_, end = tags_.end;
  if (text.empty() || (text.size() < end.size() && end.starts_with(text))) return false;
  const bool more = in_list_ || options_.syntax == ToolSyntax::kLlama3;
  mode_ = more && text.starts_with('{') ? Mode::kBeforeCall : Mode::kText;
  if (text.starts_with(end)) pending_.erase(0, end.size());
  return true;
}

std::unique_ptr<CallScanner> ToolCallParser::NewScanner() const {
  const std::vector<std::string>* const names = any_name_ ? nullptr : &options_.names;
  const bool mistral =
      options_.syntax == ToolSyntax::kMistral || options_.syntax == ToolSyntax::kMistralNamed;
  if (options_.syntax == ToolSyntax::kQwen3Coder)
    return std::make_unique<TaggedCallScanner>(names, options_.parameters);
  if (mistral && !pending_.starts_with('{')) return std::make_unique<NamedCallScanner>();
  return std::make_unique<JsonCallScanner>(names);
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
