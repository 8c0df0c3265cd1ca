#include "router/answer/answer_parser.h"

#include "router/answer/held_suffix.h"

namespace flotilla {
namespace {

bool Has(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

bool Thinks(std::string_view chat_template, const ParserChoice& choice) {
  return choice.reasoning_parser == "auto" ? Has(chat_template, kThinkEnd)
                                           : choice.reasoning_parser == "think";
}

}  // namespace

void AnswerParser::Push(std::string_view text, AnswerText* out) {
  std::string content;
  reasoning_.Push(text, &out->reasoning, &content);
  if (!content.empty()) tools_.Push(content, out);
}

void AnswerParser::Finish(AnswerText* out) {
  std::string content;
  reasoning_.Finish(&out->reasoning, &content);
  if (demanded_ && !reasoning_.in_answer()) return;  // a call that was not begun is none
  if (!content.empty()) tools_.Push(content, out);
  tools_.Finish(out);
}

ReasoningStart ReasoningStartOf(std::string_view chat_template, std::string_view prompt,
                                const ParserChoice& choice) {
  if (!Thinks(chat_template, choice)) return ReasoningStart::kNone;
  while (!prompt.empty() && IsJsonSpace(prompt.back())) prompt.remove_suffix(1);
  if (prompt.ends_with(kThinkEnd)) return ReasoningStart::kNone;  // thinking is switched off
  return prompt.ends_with(kThinkTag) ? ReasoningStart::kOpen : ReasoningStart::kTagged;
}

ReasoningStart ReasoningGoesOn(std::string_view chat_template, std::string_view begun,
                               const ParserChoice& choice) {
  begun.remove_prefix(LeadingSpace(begun));
  const bool thinks = begun.starts_with(kThinkTag) && !Has(begun, kThinkEnd);
  if (!thinks || !Thinks(chat_template, choice)) return ReasoningStart::kNone;
  begun.remove_prefix(kThinkTag.size());
  return LeadingSpace(begun) == begun.size() ? ReasoningStart::kOpen : ReasoningStart::kGoesOn;
}

}  // namespace flotilla
