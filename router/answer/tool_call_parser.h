// Tool calls in a model's output, told apart from its text, from pieces however it is cut.
//
// ToolSyntax says how the model writes calls; kArguments and kList are what a grammar makes it
// write (tools_fields.h). What looks like a call and turns out to be none is text, but not of
// kList, where it is a piece of one. White space beside a call is not. After max_calls further
// calls are dropped. Threads: one at a time. Errors: none, any text is an answer. Memory: what is
// held back is a call's text before its arguments. Source: the models' own chat templates; vLLM's
// names of the parsers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/answer/answer_text.h"
#include "router/answer/call_scanner.h"
#include "router/answer/tagged_call_scanner.h"

namespace flotilla {

// Hermes': around a call.
inline constexpr std::string_view kCallTag = "<tool_call>";
inline constexpr std::string_view kCallEnd = "</tool_call>";

enum class ToolSyntax {
  kNone,
  kHermes,  // <tool_call>{"name": "f", "arguments": {…}}</tool_call>, anywhere
  kLlama3,  // {"name": "f", "parameters": {…}}, first thing or after <|python_tag|>; more after ;
  kArguments,  // the output is the arguments of the only tool there is
  kList,       // [{"name": "f", "parameters": {…}}, …]
  kQwen3Coder  // <tool_call><function=f><parameter=a>…</parameter></function></tool_call>, anywhere
};

// What a grammar makes the model write where a call is demanded of it.
inline bool IsDemanded(ToolSyntax syntax) {
  return syntax == ToolSyntax::kArguments || syntax == ToolSyntax::kList;
}

struct ToolCallOptions {
  ToolSyntax syntax = ToolSyntax::kNone;
  std::vector<std::string> names = {};  // of the tools there are
  size_t max_calls = SIZE_MAX;
  ToolParameterTypes parameters = {};  // of kQwen3Coder
  bool first = false;                  // calls come first thing: after any text there are none
  bool short_ids = false;  // what calls are named by: 9 letters and digits, as Mistral's templates
};

class ToolCallParser {
 public:
  // `options` must outlive the parser.
  explicit ToolCallParser(const ToolCallOptions& options);

  // Appends to content and calls of *out.
  void Push(std::string_view text, AnswerText* out);
  // The output has ended: what was held back is told.
  void Finish(AnswerText* out);
  size_t num_calls() const { return num_calls_; }

 private:
  enum class Mode { kText, kBeforeCall, kCall, kAfterTag, kOnlyText };

  bool Step(AnswerText* out);
  bool StepText(AnswerText* out);
  size_t FindTag(std::string_view tag) const {
    return tag.empty() ? std::string::npos : pending_.find(tag);
  }
  bool StepBeforeCall();
  bool StepCall(AnswerText* out);
  bool StepAfterTag();
  void BeginCall(std::string_view opener);
  void TellCall(std::string arguments, AnswerText* out);
  void TellText(std::string_view text, AnswerText* out);

  const ToolCallOptions& options_;
  const std::string_view tag_;         // that a call follows; empty: none
  const std::string_view other_tag_;   // that a call begins with where tag_ was forgotten
  const std::string_view separators_;  // between calls that follow no tag of their own
  Mode mode_;
  std::string pending_;  // not looked at yet, or too short to tell
  std::string space_;    // white space at the end of the text so far
  std::unique_ptr<CallScanner> call_;
  std::string_view opener_;  // the tag before call_, if one was there
  bool call_told_ = false;
  bool after_call_ = false;  // nothing but white space since
  size_t num_calls_ = 0;
};

}  // namespace flotilla
