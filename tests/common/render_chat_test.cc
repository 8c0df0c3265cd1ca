#include "common/rpc/render_chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Says everything that a message has.
constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}{% if m.name %}/{{ m.name }}{% endif %}]"
    "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}"
    "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% if tools %}T{{ tools | length }}{% endif %}{% if flag is defined %}F{{ flag }}{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}";

class RenderChatTest : public testing::Test {
 protected:
  v1::ChatMessage* Add(const std::string& role, const std::string& content) {
    v1::ChatMessage* message = request_.add_messages();
    message->set_role(role);
    message->set_content(content);
    return message;
  }
  std::string Render() {
    const StatusOr<std::string> text = RenderChat(request_, *format_, {}, arguments_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }
  std::string Error() {
    const Status status = RenderChat(request_, *format_, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  StatusOr<ChatFormat> format_ = ChatFormat::Create(kTemplate, "<s>", "</s>");
  v1::ChatRequest request_;
  CallArguments arguments_ = CallArguments::kAsTheyAre;
};

TEST_F(RenderChatTest, WritesEachMessageAsTheTemplateSays) {
  Add("system", "Be brief.");
  Add("user", "Hé 😀")->set_name("Ann");
  EXPECT_EQ(Render(), "<s>[system]Be brief.[user/Ann]Hé 😀>");
  request_.set_add_generation_prompt(false);
  EXPECT_EQ(Render(), "<s>[system]Be brief.[user/Ann]Hé 😀");
}

TEST_F(RenderChatTest, MayEndWithTheLastMessagesText) {
  Add("user", "x");
  Add("assistant", "a <");
  request_.set_continue_final_message(true);
  EXPECT_EQ(Render(), "<s>[user]x[assistant]a <");
  request_.mutable_messages(1)->set_content("[user]x");  // stands in front of it, too
  EXPECT_EQ(Render(), "<s>[user]x[assistant][user]x");
  request_.set_add_generation_prompt(true);
  EXPECT_THAT(Error(), StartsWith("continue_final_message: "));
}

// Who trims texts wants none that ends with a space.
TEST_F(RenderChatTest, ATextThatGoesOnIsTrimmedWhereOthersAre) {
  Add("assistant", " a b \u3000");
  request_.set_continue_final_message(true);
  for (const char* trims : {"", " | trim", " | trim + ' '"}) {
    format_ = ChatFormat::Create(
        absl::StrCat("{% for m in messages %}[\n{{ m.content", trims, " }}</s>{% endfor %}"), "<s>",
        "</s>");
    EXPECT_EQ(Render(), *trims == 0 ? "[\n a b \u3000" : "[\na b");
  }
}

TEST_F(RenderChatTest, WhatCantGoOnIsSaid) {
  request_.set_continue_final_message(true);
  EXPECT_THAT(Error(), HasSubstr("at least one message"));
  Add("assistant", "\n\u00a0");
  EXPECT_THAT(Error(), StartsWith("messages: end without a text"));
  request_.mutable_messages(0)->set_content("x");
  request_.mutable_messages(0)->set_tool_calls_json(R"([{"function":{"name":"f"}}])");
  EXPECT_THAT(Error(), StartsWith("messages: end with calls"));
  request_.mutable_messages(0)->set_tool_calls_json("[]");
  EXPECT_EQ(Render(), "<s>[assistant]x");
  format_ = ChatFormat::Create("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", "", "");
  EXPECT_THAT(Error(), StartsWith("messages: can't be gone on with"));
}

TEST_F(RenderChatTest, ADeveloperIsASystemToModels) {
  Add("developer", "x");
  EXPECT_EQ(Render(), "<s>[system]x>");
}

TEST_F(RenderChatTest, ToolsAndVariablesReachTheTemplate) {
  Add("assistant", "")
      ->set_tool_calls_json(
          R"([{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1}}}])");
  Add("tool", "42")->set_tool_call_id("1");
  request_.set_tools_json(R"([{"type":"function"},{"type":"function"}])");
  request_.set_template_kwargs_json(R"({"flag":false})");
  EXPECT_EQ(Render(), "<s>[assistant]f[tool]42#1T2FFalse>");
}

// Phi-4-mini's template, whose system message says which tools there are.
TEST_F(RenderChatTest, ToolsAreInTheSystemsMessageForATemplateThatLooksThere) {
  format_ = ChatFormat::Create(
      "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
      "message['tools'] is not none %}[{{ message['content'] + '|' + message['tools'] }}]{% else %}"
      "[{{ message['content'] }}]{% endif %}{% endfor %}",
      {}, {});
  Add("user", "Hi");
  request_.set_tools_json(R"([{"type":"function","function":{"name":"f"}},{"name":"g"}])");
  EXPECT_EQ(Render(), R"([|[{"name":"f"},{"name":"g"}]][Hi])");
  request_.mutable_messages(0)->set_role("developer");
  EXPECT_EQ(Render(), R"([Hi|[{"name":"f"},{"name":"g"}]])");
  request_.clear_tools_json();
  EXPECT_EQ(Render(), "[Hi]");
}

// As OpenAI's clients write the arguments; objects are what most templates want.
TEST_F(RenderChatTest, ArgumentsAreTextForTemplatesThatFailWithObjects) {
  const auto calls = [](const char* arguments) {
    return absl::StrCat(R"([{"function":{"name":"f","arguments":)", arguments, "}}]");
  };
  const auto with = [&](const char* source, const char* arguments) {
    format_ = ChatFormat::Create(source, {}, {});
    request_.Clear();
    Add("assistant", "")->set_tool_calls_json(calls(arguments));
    return Render();
  };
  constexpr const char* kDumps = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
  constexpr const char* kJoins = "{{ 'f(' + messages[0].tool_calls[0].function.arguments + ')' }}";
  EXPECT_EQ(with(kDumps, R"("{\"a\":1}")"), R"("{\"a\":1}")");
  arguments_ = CallArguments::kObjects;
  EXPECT_EQ(with(kDumps, R"("{\"a\":  1}")"), R"({"a": 1})");
  EXPECT_EQ(with(kDumps, R"({"a":1})"), R"({"a": 1})");
  EXPECT_EQ(with(kDumps, R"("")"), "{}");
  EXPECT_EQ(with(kDumps, R"("{\"a\"")"), R"("{\"a\"")");
  EXPECT_EQ(with(kJoins, R"("{\"a\":  1}")"), R"(f({"a":  1}))") << "as the client wrote it";
  EXPECT_EQ(with(kJoins, R"({"a":1})"), R"(f({"a":1}))");
  format_ = ChatFormat::Create("{{ raise_exception('none of it') }}", {}, {});
  EXPECT_THAT(Error(), HasSubstr("none of it"));
}

TEST_F(RenderChatTest, NoContentBesideCallsIsNoneForTemplatesThatAsk) {
  Add("assistant", "")->set_tool_calls_json(R"([{"function":{"name":"f","arguments":{}}}])");
  Add("assistant", "");
  for (const char* source :
       {"{% for m in messages %}{{ 1 if m['content'] is none else 2 }}{% endfor %}",
        "{% for m in messages %}{{ 2 if m[\"content\"] is not none else 1 }}{% endfor %}",
        "{% for m in messages %}{{ 1 if m.content == None else 2 }}{% endfor %}"}) {
    format_ = ChatFormat::Create(source, {}, {});
    EXPECT_EQ(Render(), "12") << source;
  }
  format_ = ChatFormat::Create(
      "{% if tools is not none %}{% for m in messages %}[{{ m.content }}]{% endfor %}{% endif %}",
      {}, {});
  request_.set_tools_json("[{}]");
  EXPECT_EQ(Render(), "[][]") << "it would say None";
  // As Qwen3's does.
  format_ = ChatFormat::Create(
      "{% for m in messages %}{% set content = m.content %}"
      "{% if m.reasoning_content is defined and m.reasoning_content is not none %}R{% else %}"
      "{% if '</think>' in m.content %}T{% endif %}{% endif %}"
      "{{ '[' + m.role + content + ']' }}{% endfor %}",
      {}, {});
  EXPECT_EQ(Render(), "[assistant][assistant]");
  format_ = ChatFormat::Create(
      "{% for m in messages %}{% if m.content is not none %}{% endif %}{{ '[' + m.content + ']' }}"
      "{% endfor %}",
      {}, {});
  EXPECT_EQ(Render(), "[][]") << "it asks and uses it all the same";
  // Of two templates the one that is used says it.
  format_ =
      ChatFormat::Create("{{ messages[0].content }}", {}, {}, "{{ messages[0].content is none }}");
  EXPECT_EQ(Render(), "True");
  request_.clear_tools_json();
  EXPECT_EQ(Render(), "");
}

TEST_F(RenderChatTest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(Error(), "messages: must have at least one message");
  Add("user", "x");
  Add("robot", "x");
  EXPECT_THAT(Error(), StartsWith("messages[1].role: must be system,"));
  request_.mutable_messages(1)->set_role("assistant");
  request_.mutable_messages(1)->set_tool_calls_json("[1");
  EXPECT_THAT(Error(), StartsWith("messages[1].tool_calls_json: is not valid JSON"));
  request_.mutable_messages(1)->set_tool_calls_json("{}");
  EXPECT_THAT(Error(), StartsWith("messages[1].tool_calls_json: must be an array"));
  request_.mutable_messages(1)->clear_tool_calls_json();
  request_.set_tools_json("{}");
  EXPECT_THAT(Error(), StartsWith("tools_json: must be an array"));
  request_.clear_tools_json();
  request_.set_template_kwargs_json("[]");
  EXPECT_THAT(Error(), StartsWith("template_kwargs_json: must be an object"));
  request_.clear_template_kwargs_json();
  for (int i = 0; i < kMaxChatMessages; ++i) Add("user", "x");
  EXPECT_THAT(Error(), StartsWith("messages: may have at most 1024"));
}

TEST_F(RenderChatTest, SaysWhatTheTemplateSays) {
  format_ = ChatFormat::Create("{{ raise_exception('roles must alternate') }}", {}, {});
  Add("user", "x");
  EXPECT_THAT(Error(), StartsWith("messages: "));
  EXPECT_THAT(Error(), HasSubstr("roles must alternate"));
}

TEST_F(RenderChatTest, ATemplateThatNeverEndsIsStopped) {
  format_ = ChatFormat::Create(
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {}, {});
  Add("user", "x");
  EXPECT_THAT(Error(), HasSubstr("steps"));
}

TEST(ChatFormatTest, AFileWithoutTemplateCannotChat) {
  const GgufFile gguf;
  EXPECT_EQ(ChatFormat::Create(gguf).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace flotilla
