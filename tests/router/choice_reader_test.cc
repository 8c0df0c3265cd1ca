// Deltas of a choice, told apart: ids of calls, and what ended it.
#include "router/answer/choice_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/ascii.h"

namespace flotilla {
namespace {

const AnswerSyntax kHermes{ReasoningStart::kTagged, {ToolSyntax::kHermes, {"f"}}};

v1::ChoiceDelta Delta(const char* text, v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED) {
  v1::ChoiceDelta delta;
  delta.set_text(text);
  delta.set_finish_reason(reason);
  return delta;
}

TEST(ChoiceReaderTest, TheFirstPieceOfACallHasItsId) {
  ChoiceReader reader(kHermes);
  AnswerText text = reader.Read(Delta("<think>a</think>b <tool_call>{\"name\":\"f\",\"arg"));
  EXPECT_EQ(text.reasoning, "a");
  EXPECT_EQ(text.content, "b");
  std::vector<ToolCallPiece> pieces;
  for (const char* more : {"uments\":{\"a\"", ":1}}</tool_call>"}) {
    text = reader.Read(Delta(more));
    pieces.insert(pieces.end(), text.calls.begin(), text.calls.end());
  }
  ASSERT_GE(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].id.size(), std::string_view("call_").size() + 32);
  std::string arguments;
  for (const ToolCallPiece& piece : pieces) {
    EXPECT_EQ(piece.id.empty(), piece.name.empty());
    arguments += piece.arguments;
  }
  EXPECT_EQ(arguments, "{\"a\":1}");
}

// Mistral's templates take no others when the call comes back.
TEST(ChoiceReaderTest, IdsAreAsShortAsTheTemplateWants) {
  EXPECT_TRUE(HasShortIds("Tool call IDs should be alphanumeric strings with length 9!"));
  EXPECT_FALSE(HasShortIds("{{ tool_call.id }}"));
  AnswerSyntax syntax = kHermes;
  syntax.tools.short_ids = true;
  ChoiceReader reader(syntax);
  const AnswerText text = reader.Read(
      Delta("<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>"));
  ASSERT_EQ(text.calls.size(), 2u);
  for (const ToolCallPiece& call : text.calls) {
    EXPECT_EQ(call.id.size(), 9u);
    EXPECT_TRUE(std::ranges::all_of(call.id, [](char c) { return absl::ascii_isalnum(c); }))
        << call.id;
  }
  EXPECT_NE(text.calls[0].id, text.calls[1].id);
}

TEST(ChoiceReaderTest, WhatWasHeldBackIsToldAtTheEnd) {
  ChoiceReader reader(kHermes);
  EXPECT_EQ(reader.Read(Delta("b <tool_c")).content, "b");
  EXPECT_EQ(reader.Read(Delta("", v1::FINISH_REASON_LENGTH)).content, " <tool_c");
}

TEST(ChoiceReaderTest, AnOutputThatEndsItselfAfterACallIsFinishedByIt) {
  for (const auto& [text, reason, told] :
       {std::tuple{"<tool_call>{\"name\":\"f\"}", v1::FINISH_REASON_STOP,
                   v1::FINISH_REASON_TOOL_CALLS},
        {"<tool_call>{\"name\":\"f\"}", v1::FINISH_REASON_LENGTH, v1::FINISH_REASON_LENGTH},
        {"<tool_call>{\"name\":\"f\"}", v1::FINISH_REASON_UNSPECIFIED,
         v1::FINISH_REASON_UNSPECIFIED},
        {"f", v1::FINISH_REASON_STOP, v1::FINISH_REASON_STOP}}) {
    ChoiceReader reader(kHermes);
    const v1::ChoiceDelta delta = Delta(text, reason);
    reader.Read(delta);
    EXPECT_EQ(reader.FinishReasonOf(delta), told) << text;
  }
}

TEST(SetAnswerTest, ReplacesTheText) {
  v1::ChoiceDelta choice;
  choice.set_text("all of it");
  SetAnswer({"why", "said", {{0, "", "", "}"}, {1, "id", "f", ""}}}, &choice);
  EXPECT_EQ(choice.text(), "said");
  EXPECT_EQ(choice.reasoning(), "why");
  ASSERT_EQ(choice.tool_calls_size(), 2);
  EXPECT_EQ(choice.tool_calls(0).arguments(), "}");
  EXPECT_EQ(choice.tool_calls(1).index(), 1);
  EXPECT_EQ(choice.tool_calls(1).id(), "id");
  EXPECT_EQ(choice.tool_calls(1).name(), "f");
}

}  // namespace
}  // namespace flotilla
