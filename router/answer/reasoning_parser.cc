#include "router/answer/reasoning_parser.h"

#include <utility>

#include "router/answer/held_suffix.h"

namespace flotilla {
ReasoningParser::ReasoningParser(ReasoningStart start)
    : mode_(start == ReasoningStart::kNone     ? Mode::kContent
            : start == ReasoningStart::kTagged ? Mode::kStart
                                               : Mode::kThinking),
      begun_(start == ReasoningStart::kGoesOn) {}

void ReasoningParser::Push(std::string_view text, std::string* reasoning, std::string* content) {
  if (mode_ == Mode::kContent) {
    content->append(text);
    return;
  }
  pending_.append(text);
  while (!pending_.empty() && Step(reasoning, content)) {
  }
}

void ReasoningParser::Finish(std::string* reasoning, std::string* content) {
  if (mode_ == Mode::kStart) content->append(pending_);
  if (mode_ == Mode::kThinking) TellReasoning(pending_, reasoning);
  pending_.clear();
}

// False: more text is needed.
bool ReasoningParser::Step(std::string* reasoning, std::string* content) {
  const std::string_view rest = std::string_view(pending_).substr(LeadingSpace(pending_));
  if (mode_ == Mode::kThinking) {
    const size_t at = pending_.find(kThinkEnd);
    const bool closed = at != std::string::npos;
    const size_t tell = closed ? at : pending_.size() - HeldSuffix(pending_, kThinkEnd);
    TellReasoning(std::string_view(pending_).substr(0, tell), reasoning);
    pending_.erase(0, closed ? tell + kThinkEnd.size() : tell);
    if (closed) mode_ = Mode::kAfter;
    return closed;
  }
  if (mode_ == Mode::kStart) {
    if (rest.size() < kThinkTag.size() && kThinkTag.starts_with(rest)) return false;
    const bool thinks = rest.starts_with(kThinkTag);
    if (thinks) pending_.erase(0, pending_.size() - rest.size() + kThinkTag.size());
    mode_ = thinks ? Mode::kThinking : Mode::kContent;
    if (thinks) return true;
  } else if (rest.empty()) {  // kAfter
    pending_.clear();
    return false;
  } else {
    pending_.erase(0, pending_.size() - rest.size());
    mode_ = Mode::kContent;
  }
  content->append(std::exchange(pending_, ""));
  return false;
}

void ReasoningParser::TellReasoning(std::string_view text, std::string* reasoning) {
  if (!begun_) text.remove_prefix(LeadingSpace(text));
  size_t end = text.size();
  while (end > 0 && IsJsonSpace(text[end - 1])) --end;
  if (end > 0) {
    reasoning->append(space_).append(text.substr(0, end));
    space_.clear();
    begun_ = true;
  }
  space_.append(text.substr(end));
}

}  // namespace flotilla
