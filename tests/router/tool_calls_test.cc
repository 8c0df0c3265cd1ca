// Calls as Mistral's, Granite's and Phi's models write them, and calls that are demanded and cut,
// over HTTP in each API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "router/api/chat_request.h"
#include "tests/router/router_harness.h"
#include "tests/router/template_model.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function",)"
    R"("function":{"name":"g"}}])";

class ToolCallsTest : public ::testing::Test {
 protected:
  void Start(const char* parser) {
    HarnessOptions options = WithParsers();
    options.parsers.tool_call_parser = parser;
    harness_ = std::make_unique<RouterHarness>(options);
  }
  // The model writes `text` and then ends for want of tokens.
  HttpAnswer Ask(const char* path, std::string_view text, const std::string& fields) {
    const std::vector<int32_t> ids = *GetTestModel().tokenizer->Encode(std::string(text));
    harness_->engine().SetScript(ids);
    const bool responses = std::string_view(path) == "/v1/responses";
    const HttpAnswer answer =
        Post(harness_->port(), path,
             StrCat(R"({"model":"smol",)",
                    responses ? R"("input":"Hi","max_output_tokens":)"
                              : R"("messages":[{"role":"user","content":"Hi"}],"max_tokens":)",
                    ids.size(), ",", fields, "}"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer;
  }
  json::value Message(std::string_view text, const std::string& fields) {
    return ParseOrFail(Ask("/v1/chat/completions", text, fields).body)
        .at("choices")
        .at(0)
        .at("message");
  }

  std::unique_ptr<RouterHarness> harness_;
};

// name(arguments) of each.
std::vector<std::string> Calls(const json::value& message) {
  std::vector<std::string> calls;
  for (const json::value& call : message.at("tool_calls").as_array()) {
    const json::value& function = call.at("function");
    calls.push_back(StrCat(std::string(function.at("name").as_string()), "(",
                           std::string(function.at("arguments").as_string()), ")"));
  }
  return calls;
}

TEST_F(ToolCallsTest, AreReadAsTheFlagSays) {
  struct Case {
    const char* parser;
    const char* text;
  };
  constexpr Case kCases[] = {
      {"mistral", R"(Well. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}])"},
      {"mistral", R"(Well. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{})"},
      {"granite", R"(Well. <|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}])"},
      {"phi4_mini_json",
       R"(Well. functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}])"}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text);
    Start(c.parser);
    const json::value message = Message(c.text, kTools);
    EXPECT_EQ(message.at("content"), "Well.");
    EXPECT_THAT(Calls(message), ElementsAre(R"(f({"a": 1}))", "g({})"));
    const std::string message_tools = R"("tools":[{"name":"f","input_schema":{"type":"object"}}])";
    const json::value blocks =
        ParseOrFail(Ask("/v1/messages", c.text, message_tools).body).at("content");
    EXPECT_EQ(blocks.at(0).at("text"), "Well.");
    EXPECT_EQ(blocks.at(1).at("name"), "f");
    EXPECT_EQ(blocks.at(2).at("input"), json::object());
    const std::string flat_tools = R"("tools":[{"type":"function","name":"f"}])";
    const json::value items =
        ParseOrFail(Ask("/v1/responses", c.text, flat_tools).body).at("output");
    EXPECT_EQ(items.at(1).at("arguments"), R"({"a": 1})");
  }
}

// A tool that is strict holds its calls, as they are written here.
TEST_F(ToolCallsTest, OfStrictToolsAreHeld) {
  Start("granite");
  Message("x", R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])");
  const json::value tag =
      ParseOrFail(harness_->engine().submits().back().request().structured().structural_tag());
  const json::value& format = tag.at("format").at("elements").at(1);
  EXPECT_EQ(format.at("triggers").at(0), "<|tool_call|>");
  EXPECT_EQ(format.at("tags").at(0).at("content").at("type"), "tags_with_separator");
}

// max_tokens ended the list before a call was told: its brackets are no answer.
TEST_F(ToolCallsTest, ThatWereDemandedAndCutAreNoText) {
  Start("hermes");
  for (const char* cut : {"[", R"([{ "name": "g)"}) {
    const std::string fields = StrCat(kTools, R"(,"tool_choice":"required")");
    const json::value message = Message(cut, fields);
    EXPECT_TRUE(message.at("content").is_null());
    EXPECT_FALSE(message.as_object().contains("tool_calls"));
    const HttpAnswer chat = Ask("/v1/chat/completions", cut, fields + R"(,"stream":true)");
    EXPECT_THAT(chat.body, HasSubstr(R"("finish_reason":"length")"));
    for (const std::string& event : Events(chat.body)) {
      if (event == "[DONE]") continue;
      const json::value root = ParseOrFail(event);
      const json::object& delta = root.at("choices").at(0).at("delta").as_object();
      if (delta.contains("content")) {
        EXPECT_EQ(delta.at("content"), "");
      }
    }
    const std::string any = R"("tools":[{"name":"f","input_schema":{"type":"object"}}],)"
                            R"("tool_choice":{"type":"any"})";
    const json::value whole = ParseOrFail(Ask("/v1/messages", cut, any).body);
    EXPECT_EQ(whole.at("content"), json::array());
    EXPECT_EQ(whole.at("stop_reason"), "max_tokens");
    EXPECT_THAT(Ask("/v1/messages", cut, any + R"(,"stream":true)").body,
                Not(HasSubstr("content_block")));
    const std::string flat = R"("tools":[{"type":"function","name":"f"}],"tool_choice":"required")";
    EXPECT_EQ(ParseOrFail(Ask("/v1/responses", cut, flat).body).at("output"), json::array());
    EXPECT_THAT(Ask("/v1/responses", cut, flat + R"(,"stream":true)").body,
                Not(HasSubstr("output_item")));
  }
}

// What is said to a client whose model's calls are not searched for.
TEST(ToolsNotReadTest, TheReasonIsTrue) {
  const auto refused = [](const char* chat_template, const char* parser) {
    const auto parsed = ParseChat(
        StrCat(R"({"model":"m","messages":[{"role":"user","content":"Hi"}],)", kTools, "}"),
        TemplateModel(chat_template), {.tool_call_parser = parser});
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? std::string() : error->message;
  };
  EXPECT_EQ(refused("{{ tools }}<function=f>{}</function>", "auto"),
            "'tools': this model's chat template has calls written in a way that is not read. Ask "
            "for a call by 'tool_choice', 'required' or a function; or see --tool-call-parser.");
  EXPECT_THAT(refused("{{ messages[0].content }}", "auto"),
              HasSubstr("this model's chat template knows none."));
  EXPECT_THAT(refused("{{ tools }}<tool_call>", "none"), HasSubstr("by --tool-call-parser none."));
  EXPECT_EQ(refused("{{ tools }}<|tool_call|>", "auto"), "");
  EXPECT_EQ(refused("{{ tools }}[TOOL_CALLS]", "auto"), "");
  // A way that the template does not speak of is taken from the flag, if the tools are shown.
  EXPECT_EQ(refused("{{ tools }}", "mistral"), "");
  EXPECT_THAT(refused("{{ messages[0].content }}", "mistral"), HasSubstr("the prompt is the same"));
}

}  // namespace
}  // namespace flotilla
