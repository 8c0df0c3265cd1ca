// Tool calls in a model's output, told apart from its text, from pieces however it is cut.
//
// Calls follow a tag, alone or as a list, and a tag may end them; which tags, ToolSyntax says. What
// looks like a call and turns out to be none is text, but not where the output has to be a list of
// calls: there it is a piece of one. White space beside a call is no text. After max_calls further
// calls are dropped.
// Threads: one at a time. Errors: none, any text is an answer. Memory: what is held back is a
// call's text before its arguments.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/answer/answer_text.h"
#include "router/answer/call_scanner.h"
#include "router/answer/tagged_call_scanner.h"
#include "router/answer/tool_syntax.h"

namespace flotilla {

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
  enum class Mode {
    kText,
    kBeforeCall,  // behind its tag, or at the very beginning
    kCall,
    kAfterCall,
    kOnlyText
  };

  bool Step(AnswerText* out);
  bool StepText(AnswerText* out);
  bool StepBeforeCall();
  bool StepCall(AnswerText* out);
  bool StepAfterCall();
  std::unique_ptr<CallScanner> NewScanner() const;
  void TellCall(std::string arguments, AnswerText* out);
  void TellText(std::string_view text, AnswerText* out);

  const ToolCallOptions& options_;
  const ToolTags tags_;
  Mode mode_;
  std::string pending_;    // not looked at yet, or too short to tell
  std::string space_;      // white space at the end of the text so far
  std::string opener_;     // what stands before a call, from its tag on, while it may be text
  bool any_name_ = false;  // behind a tag anything is a call
  bool in_list_ = false;   // the brackets around calls are open
  std::unique_ptr<CallScanner> call_;
  bool call_told_ = false;
  bool after_call_ = false;  // nothing but white space since
  size_t num_calls_ = 0;
};

}  // namespace flotilla
