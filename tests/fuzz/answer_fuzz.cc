// libFuzzer: any text as a model's output, in pieces. However it is cut, the same is told of it, in
// the same order; no byte is told twice, a call begins with its name, and text without tags stays
// as it is.
//
// The first byte says how the model writes (syntax, reasoning, calls first, one call only), the
// second how long the pieces are.
#include <string>

#include "common/base/check.h"
#include "router/answer/answer_parser.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

void Join(const AnswerText& next, AnswerText* all) {
  all->reasoning += next.reasoning;
  for (const ToolCallPiece& call : next.calls) {
    CHECK(call.at <= next.content.size());
    if (call.name.empty()) {
      CHECK(!all->calls.empty() && all->calls.back().index == call.index);
      all->calls.back().arguments += call.arguments;
    } else {
      CHECK(call.index == all->calls.size());
      all->calls.push_back(call);
      all->calls.back().at += all->content.size();
    }
  }
  all->content += next.content;
}

AnswerText Parse(const AnswerSyntax& syntax, std::string_view text, size_t piece) {
  AnswerParser parser(syntax);
  AnswerText all;
  while (!text.empty()) {
    AnswerText next;
    const size_t size = piece == 0 ? text.size() : std::min(piece, text.size());
    const std::string part(text.substr(0, size));  // no view of it may outlive the call
    parser.Push(part, &next);
    Join(next, &all);
    text.remove_prefix(size);
  }
  AnswerText last;
  parser.Finish(&last);
  Join(last, &all);
  CHECK(parser.called_tools() == !all.calls.empty());
  return all;
}

constexpr int kSyntaxes = static_cast<int>(ToolSyntax::kPhi4Mini) + 1;

size_t BytesOfArguments(const AnswerText& text) {
  size_t bytes = 0;
  for (const ToolCallPiece& call : text.calls) bytes += call.arguments.size();
  return bytes;
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  const uint8_t how = input.Get<uint8_t>();
  const uint8_t piece = input.Get<uint8_t>();
  const fuzz::Piece rest = input.Rest();
  AnswerSyntax syntax;
  syntax.tools.syntax = static_cast<ToolSyntax>((how & 0x0f) % kSyntaxes);
  syntax.tools.names = {"f", "get_weather"};
  syntax.tools.parameters["f"] = {{"j", ParameterType::kJson}, {"n", ParameterType::kTextOrNull}};
  if (how & 0x80) syntax.tools.max_calls = 1;
  syntax.tools.first = (how & 0x40) != 0;
  syntax.reasoning = static_cast<ReasoningStart>(how >> 4 & 3);
  const AnswerText whole = Parse(syntax, rest.view(), 0);
  const AnswerText pieces = Parse(syntax, rest.view(), piece);
  CHECK(whole.reasoning == pieces.reasoning && whole.content == pieces.content);
  CHECK(whole.calls.size() == pieces.calls.size() && whole.calls.size() <= syntax.tools.max_calls);
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    CHECK(whole.calls[i].name == pieces.calls[i].name);
    CHECK(whole.calls[i].arguments == pieces.calls[i].arguments);
    CHECK(whole.calls[i].at == pieces.calls[i].at);
  }
  // "{}" stands for arguments that a call does not have. Values between tags get JSON's escapes.
  const size_t escapes = syntax.tools.syntax == ToolSyntax::kQwen3Coder ? 6 : 1;
  const size_t text = whole.reasoning.size() + whole.content.size();
  CHECK(text <= rest.view().size());
  CHECK(BytesOfArguments(whole) <= (rest.view().size() - text) * escapes + 2 * whole.calls.size());
  const bool plain =
      syntax.tools.syntax == ToolSyntax::kNone && syntax.reasoning == ReasoningStart::kNone;
  if (plain) CHECK(whole.content == rest.view());
  if (syntax.tools.syntax == ToolSyntax::kList) CHECK(whole.content.empty());
  return 0;
}
