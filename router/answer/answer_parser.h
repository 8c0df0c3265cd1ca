// One choice's text → reasoning, content and tool calls, from pieces however it is cut: the two
// parsers one after the other. What was thought is never searched for calls.
//
// The model's chat template says how it thinks, unless a flag names a parser.
// Threads: one at a time. Errors: none, any text is an answer.
#pragma once

#include <string>
#include <string_view>

#include "router/answer/reasoning_parser.h"
#include "router/answer/tool_call_parser.h"

namespace flotilla {

struct AnswerSyntax {
  ReasoningStart reasoning = ReasoningStart::kNone;
  ToolCallOptions tools = {};
};

class AnswerParser {
 public:
  // `syntax` must outlive the parser.
  explicit AnswerParser(const AnswerSyntax& syntax)
      : demanded_(syntax.tools.syntax == ToolSyntax::kArguments),
        reasoning_(syntax.reasoning),
        tools_(syntax.tools) {}

  void Push(std::string_view text, AnswerText* out);
  void Finish(AnswerText* out);
  bool called_tools() const { return tools_.num_calls() > 0; }

 private:
  const bool demanded_;  // the output is one call
  ReasoningParser reasoning_;
  ToolCallParser tools_;
};

// What the flags of these names say, for every model (common/base/flags.h).
struct ParserChoice {
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string default_chat_template_kwargs = {};  // a JSON object; empty: none
};

// `prompt`: that the output follows on.
ReasoningStart ReasoningStartOf(std::string_view chat_template, std::string_view prompt,
                                const ParserChoice& choice);
// Of an output that goes on with `begun`.
ReasoningStart ReasoningGoesOn(std::string_view chat_template, std::string_view begun,
                               const ParserChoice& choice);

}  // namespace flotilla
