#include "router/choice_reader.h"

#include "common/base/status.h"
#include "router/random.h"

namespace flotilla {

AnswerText ChoiceReader::Read(const v1::ChoiceDelta& delta) {
  AnswerText text;
  parser_.Push(delta.text(), &text);
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) parser_.Finish(&text);
  for (ToolCallPiece& call : text.calls) {
    if (!call.name.empty()) call.id = StrCat("call_", RandomHex128());
  }
  return text;
}

v1::FinishReason ChoiceReader::FinishReasonOf(const v1::ChoiceDelta& delta) const {
  const bool stopped = delta.finish_reason() == v1::FINISH_REASON_STOP;
  return stopped && parser_.called_tools() ? v1::FINISH_REASON_TOOL_CALLS : delta.finish_reason();
}

}  // namespace flotilla
