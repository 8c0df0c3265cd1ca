#include "router/answer/choice_reader.h"

#include <utility>

#include "common/base/status.h"
#include "router/base/random.h"

namespace flotilla {

AnswerText ChoiceReader::Read(const v1::ChoiceDelta& delta) {
  AnswerText text;
  parser_.Push(delta.text(), &text);
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) parser_.Finish(&text);
  for (ToolCallPiece& call : text.calls) {
    if (call.name.empty()) continue;
    call.id = short_ids_ ? RandomHex128().substr(0, 9) : StrCat("call_", RandomHex128());
  }
  return text;
}

v1::FinishReason ChoiceReader::FinishReasonOf(const v1::ChoiceDelta& delta) const {
  const bool stopped = delta.finish_reason() == v1::FINISH_REASON_STOP;
  return stopped && parser_.called_tools() ? v1::FINISH_REASON_TOOL_CALLS : delta.finish_reason();
}

void SetAnswer(AnswerText answer, v1::ChoiceDelta* choice) {
  choice->set_text(std::move(answer.content));
  choice->set_reasoning(std::move(answer.reasoning));
  for (ToolCallPiece& piece : answer.calls) {
    v1::ToolCallDelta* call = choice->add_tool_calls();
    call->set_index(static_cast<int32_t>(piece.index));
    call->set_id(std::move(piece.id));
    call->set_name(std::move(piece.name));
    call->set_arguments(std::move(piece.arguments));
  }
}

}  // namespace flotilla
