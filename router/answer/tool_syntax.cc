#include "router/answer/tool_syntax.h"

#include <algorithm>
#include <array>

#include "router/answer/tagged_call_scanner.h"

namespace flotilla {
namespace {

constexpr std::string_view kMistralTag = "[TOOL_CALLS]";
constexpr std::string_view kGraniteTag = "<|tool_call|>";  // Phi-4-mini's, too
constexpr std::string_view kPhiEnd = "<|/tool_call|>";
constexpr std::string_view kPhiWord = "functools[";  // without the bracket a word of Python's
constexpr std::string_view kPythonTag = "<|python_tag|>";

constexpr std::array kHermesTags = {kCallTag};
constexpr std::array kLlamaTags = {kPythonTag};
constexpr std::array kMistralTags = {kMistralTag};
constexpr std::array kGraniteTags = {kGraniteTag, kCallTag};
constexpr std::array kPhiTags = {kGraniteTag, kPhiWord};

struct NamedParser {
  std::string_view name;
  ToolSyntax syntax;
};
constexpr auto kParsers = std::to_array<NamedParser>({{"none", ToolSyntax::kNone},
                                                      {"hermes", ToolSyntax::kHermes},
                                                      {"llama3_json", ToolSyntax::kLlama3},
                                                      {"qwen3_coder", ToolSyntax::kQwen3Coder},
                                                      {"mistral", ToolSyntax::kMistral},
                                                      {"granite", ToolSyntax::kGranite},
                                                      {"phi4_mini_json", ToolSyntax::kPhi4Mini}});

bool Mentions(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

ToolSyntax SyntaxOf(std::string_view chat_template) {
  const auto has = [&](std::string_view what) { return Mentions(chat_template, what); };
  if (has(kMistralTag)) return ToolSyntax::kMistral;
  if (has(kPhiWord) || has("<|/tool|>")) return ToolSyntax::kPhi4Mini;
  if (has(kGraniteTag)) return ToolSyntax::kGranite;
  // Functionary's are not read, <function=f>{…}</function>, and GLM's are not:
  // <tool_call>f<arg_key>….
  if (has("<arg_key>")) return ToolSyntax::kNone;
  if (has(kFunctionTag))
    return has(kCallTag) && has(kParameterTag) ? ToolSyntax::kQwen3Coder : ToolSyntax::kNone;
  if (has(kCallTag)) return ToolSyntax::kHermes;
  const bool llama = has(kPythonTag) || (has("<|eot_id|>") && has("\"parameters\""));
  return llama ? ToolSyntax::kLlama3 : ToolSyntax::kNone;
}

}  // namespace

ToolTags TagsOf(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kHermes:
      return {.begin = kHermesTags, .end = kCallEnd};
    case ToolSyntax::kQwen3Coder:
      return {.begin = kHermesTags, .forgotten = kFunctionTag, .end = kCallEnd};
    case ToolSyntax::kLlama3:
      return {.begin = kLlamaTags};
    case ToolSyntax::kMistral:
    case ToolSyntax::kMistralNamed:
      return {.begin = kMistralTags};
    case ToolSyntax::kGranite:
      return {.begin = kGraniteTags, .end = kCallEnd};
    case ToolSyntax::kPhi4Mini:
      return {.begin = kPhiTags, .end = kPhiEnd};
    case ToolSyntax::kNone:
    case ToolSyntax::kArguments:
    case ToolSyntax::kList:
      return {};
  }
  return {};
}

ToolSyntax ToolSyntaxOf(std::string_view chat_template, std::string_view parser) {
  const auto* named = std::ranges::find(kParsers, parser, &NamedParser::name);
  const ToolSyntax syntax = named == kParsers.end() ? SyntaxOf(chat_template) : named->syntax;
  const bool args = syntax == ToolSyntax::kMistral && Mentions(chat_template, "[ARGS]");
  return args ? ToolSyntax::kMistralNamed : syntax;
}

bool MentionsTools(std::string_view chat_template) { return Mentions(chat_template, "tools"); }

// "Tool call IDs should be alphanumeric strings with length 9!"
bool HasShortIds(std::string_view chat_template) { return Mentions(chat_template, "length 9"); }

}  // namespace flotilla
