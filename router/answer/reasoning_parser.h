// <think>…</think> at the beginning of an output, told apart from the answer, from pieces however
// the text is cut.
//
// White space next to the tags belongs to neither part. Threads: one at a time. Errors: none, any
// text is an answer. Source: the templates of DeepSeek R1 and Qwen 3.
#pragma once

#include <string>
#include <string_view>

#include "router/answer/answer_text.h"

namespace flotilla {

inline constexpr std::string_view kThinkTag = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";

enum class ReasoningStart {
  kNone,    // the model has no such tags, or the prompt has begun an answer
  kTagged,  // it may open with <think>
  kOpen,    // the prompt ends with <think>: it begins in the middle of it
  kGoesOn   // the prompt ends within a thought, of which white space is part
};

class ReasoningParser {
 public:
  explicit ReasoningParser(ReasoningStart start);

  // Appends to *reasoning and *content.
  void Push(std::string_view text, std::string* reasoning, std::string* content);
  void Finish(std::string* reasoning, std::string* content);
  bool in_answer() const { return mode_ == Mode::kContent; }  // it has begun

 private:
  enum class Mode { kStart, kThinking, kAfter, kContent };

  bool Step(std::string* reasoning, std::string* content);
  void TellReasoning(std::string_view text, std::string* reasoning);

  Mode mode_;
  std::string pending_;
  std::string space_;   // at the end of the reasoning so far
  bool begun_ = false;  // of the reasoning, something other than white space was told
};

}  // namespace flotilla
