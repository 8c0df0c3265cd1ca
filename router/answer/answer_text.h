// A choice's text, told apart: what was thought, what was said, which tools were called.
//
// Threads: plain data.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace flotilla {

// A piece of a call. The first one of a call has its name, and an id as soon as somebody gives it
// one.
struct ToolCallPiece {
  size_t index = 0;  // of the call in its choice
  std::string id;
  std::string name;
  std::string arguments;  // JSON as the model wrote it; pieces are joined
};

struct AnswerText {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;
};

}  // namespace flotilla
