// The templates of models, as they are in llama.cpp's source archive (tests/bench/build_llama.sh):
// how their models write calls is recognised, and calls that they show are read as they were.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "common/rpc/render_chat.h"
#include "router/answer/answer_parser.h"

namespace flotilla {
namespace {

using enum ToolSyntax;

std::string OutputOf(const std::string& command) {
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) text += buffer;
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text.substr(0, text.find('\n'));
}

std::string Template(const std::string& name) {
  static const std::string source = OutputOf(FLOTILLA_BUILD_LLAMA " --source");
  std::ifstream file(std::filesystem::path(source) / "models/templates" / (name + ".jinja"));
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Known {
  const char* name;
  ToolSyntax syntax;
  bool shows_calls = true;  // of messages, as its model is to write them
};
constexpr Known kKnown[] = {
    {"mistralai-Mistral-Nemo-Instruct-2407", kMistral},
    {"Mistral-Small-3.2-24B-Instruct-2506", kMistralNamed},
    {"mistralai-Ministral-3-14B-Reasoning-2512", kMistralNamed},
    {"unsloth-mistral-Devstral-Small-2507", kMistralNamed},
    {"ibm-granite-granite-3.3-2B-Instruct", kGranite, false},
    {"ibm-granite-granite-4.0", kHermes},
    {"ibm-granite-granite-4.1", kHermes},
    {"fireworks-ai-llama-3-firefunction-v2", kPhi4Mini, false},
    {"unsloth-Apriel-1.5", kHermes, false},
    {"Qwen-Qwen2.5-7B-Instruct", kHermes},
    {"Qwen-Qwen3-0.6B", kHermes},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", kHermes, false},
    {"Qwen3-Coder", kQwen3Coder},
    {"meta-llama-Llama-3.1-8B-Instruct", kLlama3, false},
    {"meta-llama-Llama-3.2-3B-Instruct", kLlama3, false},
    {"meetkai-functionary-medium-v3.1", kNone},
    {"meetkai-functionary-medium-v3.2", kNone},
    {"GLM-4.6", kNone},
    {"moonshotai-Kimi-K2", kNone},
    {"openai-gpt-oss-120b", kNone},
    {"google-gemma-2-2b-it", kNone},
    {"microsoft-Phi-3.5-mini-instruct", kNone},
};

TEST(ToolTemplatesTest, TellHowTheirModelsWriteCalls) {
  for (const Known& known : kKnown) {
    const std::string source = Template(known.name);
    EXPECT_EQ(ToolSyntaxOf(source, "auto"), known.syntax) << known.name;
    EXPECT_TRUE(known.syntax == kNone || MentionsTools(source)) << known.name;
  }
  EXPECT_TRUE(MentionsTools(Template("meetkai-functionary-medium-v3.1")));
  EXPECT_FALSE(MentionsTools(Template("google-gemma-2-2b-it")));
  EXPECT_TRUE(HasShortIds(Template("mistralai-Mistral-Nemo-Instruct-2407")));
}

TEST(ToolTemplatesTest, CallsThatTheyShowAreRead) {
  v1::ChatRequest request;
  v1::ChatMessage* message = request.add_messages();
  message->set_role("user");
  message->set_content("Hi");
  message = request.add_messages();
  message->set_role("assistant");
  message->set_tool_calls_json(
      R"([{"type":"function","id":"abcdefgh1","function":{"name":"f","arguments":{"a":"x"}}},)"
      R"({"type":"function","id":"abcdefgh2","function":{"name":"g","arguments":{"b":"]}"}}}])");
  request.set_add_generation_prompt(false);
  for (const Known& known : kKnown) {
    if (known.syntax == kNone || !known.shows_calls) continue;
    const auto format = ChatFormat::Create(Template(known.name), "<s>", "</s>");
    ASSERT_TRUE(format.ok()) << format.status();
    const auto text = RenderChat(request, *format, {}, CallArguments::kObjects);
    ASSERT_TRUE(text.ok()) << known.name << ": " << text.status();
    const AnswerSyntax syntax = {.tools = {.syntax = known.syntax, .names = {"f", "g"}}};
    AnswerParser parser(syntax);
    AnswerText answer;
    parser.Push(*text, &answer);
    parser.Finish(&answer);
    std::map<std::string, std::string> arguments;
    std::string name;
    for (const ToolCallPiece& piece : answer.calls) {
      if (!piece.name.empty()) name = piece.name;
      arguments[name] += piece.arguments;
    }
    ASSERT_EQ(arguments.size(), 2u) << known.name << ": " << *text;
    EXPECT_EQ(arguments["f"], R"({"a": "x"})") << known.name;
    EXPECT_EQ(arguments["g"], R"({"b": "]}"})") << known.name;
  }
}

}  // namespace
}  // namespace flotilla
