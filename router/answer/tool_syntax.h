// How models write calls of tools: the ways there are, the tags that mark them, and which way a
// chat template speaks of.
//
// Threads: pure functions. Source: the models' own chat templates; vLLM's names of the parsers.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace flotilla {

// Hermes': around a call.
inline constexpr std::string_view kCallTag = "<tool_call>";
inline constexpr std::string_view kCallEnd = "</tool_call>";

// Where calls are a list, one without brackets is read, too.
enum class ToolSyntax {
  kNone,
  kHermes,  // <tool_call>{"name": "f", "arguments": {…}}</tool_call>
  kLlama3,  // {"name": "f", "parameters": {…}}, first thing or after <|python_tag|>; more after ;
  kArguments,     // the output is the arguments of the only tool there is
  kList,          // the output is [{"name": "f", "parameters": {…}}, …]
  kQwen3Coder,    // <tool_call><function=f><parameter=a>…</parameter></function></tool_call>
  kMistral,       // [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]
  kMistralNamed,  // [TOOL_CALLS]f[ARGS]{…}; either of the two is read as both are
  kGranite,       // <|tool_call|>[{"name": "f", "arguments": {…}}, …]
  kPhi4Mini,      // the same with <|/tool_call|> behind it, or functools[{"name": "f", …}, …]
};

// What a grammar makes the model write where a call is demanded of it.
inline bool IsDemanded(ToolSyntax syntax) {
  return syntax == ToolSyntax::kArguments || syntax == ToolSyntax::kList;
}

struct ToolTags {
  std::span<const std::string_view> begin = {};  // calls follow any of them
  std::string_view forgotten = {};  // what a call begins with where its tag was forgotten
  std::string_view end = {};        // behind calls, if the model writes it
};
ToolTags TagsOf(ToolSyntax syntax);

// How a model with this chat template writes calls, if it knows tools at all. `parser`: a value of
// --tool-call-parser (common/base/flags.h).
ToolSyntax ToolSyntaxOf(std::string_view chat_template, std::string_view parser);
// Whether it shows tools to the model, however that is to write calls.
bool MentionsTools(std::string_view chat_template);
// Whether it takes ids of calls only if they are 9 letters and digits.
bool HasShortIds(std::string_view chat_template);

}  // namespace flotilla
