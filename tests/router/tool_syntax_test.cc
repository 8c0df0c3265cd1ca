#include "router/answer/tool_syntax.h"

#include <gtest/gtest.h>

#include "common/base/flags.h"

namespace flotilla {
namespace {

ToolSyntax Auto(std::string_view chat_template) { return ToolSyntaxOf(chat_template, "auto"); }

TEST(ToolSyntaxTest, TheTemplateTellsIt) {
  const std::string qwen = "{{ '<tool_call>' }}",
                    llama = "<|eot_id|>{\"name\": n, \"parameters\": p}";
  EXPECT_EQ(Auto(qwen), ToolSyntax::kHermes);
  EXPECT_EQ(Auto(llama), ToolSyntax::kLlama3);
  EXPECT_EQ(Auto("{{ '<|python_tag|>' }}"), ToolSyntax::kLlama3);
  EXPECT_EQ(Auto("{{ messages }}"), ToolSyntax::kNone);
  EXPECT_EQ(Auto(qwen + "<function=f>\n<parameter=a>"), ToolSyntax::kQwen3Coder);
  EXPECT_EQ(Auto("{{ '[TOOL_CALLS][' }}"), ToolSyntax::kMistral);
  EXPECT_EQ(Auto("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"), ToolSyntax::kMistralNamed);
  EXPECT_EQ(Auto("{{ '<|tool_call|>' }}"), ToolSyntax::kGranite);
  EXPECT_EQ(Auto("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}"), ToolSyntax::kPhi4Mini);
  EXPECT_EQ(Auto("formatted as functools[{\"name\": n}] <|eot_id|>"), ToolSyntax::kPhi4Mini);
}

TEST(ToolSyntaxTest, WaysThatAreNotRead) {
  EXPECT_EQ(Auto("<|eot_id|>\"parameters\"<|python_tag|><function=f>{}</function>"),
            ToolSyntax::kNone);
  EXPECT_EQ(Auto("<tool_call>f<arg_key>a</arg_key>"), ToolSyntax::kNone);
  EXPECT_TRUE(MentionsTools("{% for tool in tools %}"));
  EXPECT_FALSE(MentionsTools("{{ messages }}"));
}

TEST(ToolSyntaxTest, TheFlagGoesFirst) {
  const std::string coder = "<tool_call><function=f>\n<parameter=a>";
  EXPECT_EQ(ToolSyntaxOf("<tool_call>", "qwen3_coder"), ToolSyntax::kQwen3Coder);
  EXPECT_EQ(ToolSyntaxOf(coder, "hermes"), ToolSyntax::kHermes);
  EXPECT_EQ(ToolSyntaxOf("", "hermes"), ToolSyntax::kHermes);
  EXPECT_EQ(ToolSyntaxOf("", "llama3_json"), ToolSyntax::kLlama3);
  EXPECT_EQ(ToolSyntaxOf(coder, "mistral"), ToolSyntax::kMistral);
  EXPECT_EQ(ToolSyntaxOf("[ARGS]", "mistral"), ToolSyntax::kMistralNamed);
  EXPECT_EQ(ToolSyntaxOf(coder, "granite"), ToolSyntax::kGranite);
  EXPECT_EQ(ToolSyntaxOf("<|tool_call|>", "phi4_mini_json"), ToolSyntax::kPhi4Mini);
  EXPECT_EQ(ToolSyntaxOf(coder, "none"), ToolSyntax::kNone);
  // Whatever the flag may say is known here: none of it is as "auto".
  for (const std::string_view parser : kToolCallParsers)
    EXPECT_EQ(ToolSyntaxOf(coder, parser) == Auto(coder),
              parser == "auto" || parser == "qwen3_coder")
        << parser;
}

}  // namespace
}  // namespace flotilla
