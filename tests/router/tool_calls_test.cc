// Calls that are demanded and cut, over HTTP in each API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;
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

}  // namespace
}  // namespace flotilla
