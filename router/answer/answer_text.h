// A choice's text, told apart: what was thought, what was said, which tools were called.
//
// Thoughts come first. What was said and what was called may take turns; each piece of a call
// knows where it stands.
// Threads: plain data.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// A piece of a call. The first one of a call has its name, and an id as soon as somebody gives it
// one.
struct ToolCallPiece {
  size_t index = 0;  // of the call in its choice
  std::string id;
  std::string name;
  std::string arguments;  // JSON as the model wrote it; pieces are joined
  size_t at = 0;          // bytes of the content beside it that come before it
};

struct AnswerText {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;
};

// In the model's order: on_text(std::string_view), never empty, and on_call(const ToolCallPiece&).
template <typename OnText, typename OnCall>
void ForEachPart(std::string_view content, const std::vector<ToolCallPiece>& calls, OnText on_text,
                 OnCall on_call) {
  size_t told = 0;
  for (const ToolCallPiece& call : calls) {
    if (call.at > told) on_text(content.substr(told, call.at - told));
    told = call.at;
    on_call(call);
  }
  if (content.size() > told) on_text(content.substr(told));
}

}  // namespace flotilla
