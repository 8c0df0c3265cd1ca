// The public interface: inputs, errors, sharing.
#include "common/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kChatMl =
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

ChatTemplateInput Conversation() {
  ChatTemplateInput input;
  input.messages = boost::json::parse(R"([{"role": "system", "content": "Be brief."},
                                          {"role": "user", "content": "Grüezi!"}])");
  return input;
}

constexpr std::string_view kConversationText =
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüezi!<|im_end|>\n";

TEST(ChatTemplateTest, RendersAConversation) {
  ChatTemplateInput input = Conversation();
  EXPECT_EQ(Rendered(kChatMl, input), kConversationText);
  input.add_generation_prompt = true;
  EXPECT_EQ(Rendered(kChatMl, input), std::string(kConversationText) + "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, InputsAreNamedAsTransformersNamesThem) {
  ChatTemplateInput input = Conversation();
  input.tools = boost::json::parse(R"([{"name": "f"}])");
  input.documents = boost::json::parse(R"([{"title": "t"}])");
  input.bos_token = "<s>";
  input.extra["enable_thinking"] = false;
  EXPECT_EQ(Rendered("{{ bos_token }}{{ eos_token is defined }}{{ tools[0].name }}"
                     "{{ documents[0].title }}{{ enable_thinking }}{{ messages|length }}",
                     input),
            "<s>FalseftFalse2");
}

TEST(ChatTemplateTest, WhatIsAbsentIsNoneOrUndefined) {
  EXPECT_EQ(Rendered("{{ tools }}{{ documents }}{{ messages }}{{ add_generation_prompt }}"
                     "{{ bos_token is defined }}",
                     ChatTemplateInput()),
            "NoneNoneNoneFalseFalse");
}

TEST(ChatTemplateTest, ExtraVariablesMayReplaceTokensButNotTheConversation) {
  ChatTemplateInput input = Conversation();
  input.bos_token = "<s>";
  input.extra["bos_token"] = "<b>";
  EXPECT_EQ(Rendered("{{ bos_token }}", input), "<b>");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    input.extra = {{name, 1}};
    EXPECT_THAT(Rendered("x", input), HasSubstr("can't be given twice")) << name;
  }
}

TEST(ChatTemplateTest, ATemplateMayRefuseAConversation) {
  const auto chat_template =
      ChatTemplate::Parse("a\n{{ raise_exception('Roles must alternate') }}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const Status status = chat_template->Render(Conversation()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "chat template, line 2: Roles must alternate");
}

TEST(ChatTemplateTest, ErrorsNameTheInnermostLine) {
  EXPECT_THAT(Rendered("{% macro f(x) %}\n{{ x\n + 1 }}\n{% endmacro %}\n{{ f('a') }}"),
              HasSubstr("line 3: unsupported operand type(s) for +: 'str' and 'int'"));
  EXPECT_THAT(Rendered("\n\n{% if x"), HasSubstr("line 3: expected the end of the tag"));
  EXPECT_THAT(Rendered("\n{{ messages.x.y }}"), HasSubstr("line 2: 'None' has no attribute 'x'"));
}

TEST(ChatTemplateTest, WhatIsLeftOutOfJinja2SaysSo) {
  for (const std::string_view source :
       {"{% include 'a' %}", "{% extends 'a' %}", "{% import 'a' as b %}",
        "{% from 'a' import b %}", "{% block a %}{% endblock %}",
        "{% autoescape true %}{% endautoescape %}", "{% for a in l recursive %}{% endfor %}"}) {
    EXPECT_EQ(ChatTemplate::Parse(source).status().code(), absl::StatusCode::kUnimplemented)
        << source;
  }
  for (const std::string_view source :
       {"{{ l|map('upper') }}", "{{ s.upper }}", "{{ range }}", "{{ s.encode() }}", "{{ n.real }}",
        "{{ 9223372036854775807 + 1 }}", "{{ 2 ** 64 }}", "{{ -9223372036854775807 - 2 }}",
        "{{ (-8) ** 0.5 }}", "{{ u.isalpha() }}", "{{ '{:{}}'.format(1, 2) }}"}) {
    EXPECT_THAT(Rendered(source), HasSubstr("UNIMPLEMENTED")) << source;
  }
}

TEST(ChatTemplateTest, InvalidUtf8IsRefusedWherverItComesFrom) {
  EXPECT_THAT(Rendered("a\xff"), HasSubstr("invalid UTF-8 at offset 1"));
  ChatTemplateInput input;
  input.messages = boost::json::string("b\xc3");
  EXPECT_THAT(Rendered("x", input), HasSubstr("messages: invalid UTF-8 at offset 1"));
  input = {};
  input.bos_token = "\x80";
  EXPECT_THAT(Rendered("x", input), HasSubstr("bos_token: invalid UTF-8"));
  input = {};
  input.extra["\xff"] = 1;
  input.extra["k"] = boost::json::object{{"\xfe", 1}};
  EXPECT_THAT(Rendered("x", input), HasSubstr("invalid UTF-8"));
}

TEST(ChatTemplateTest, NumbersOfJsonAreThoseOfPython) {
  ChatTemplateInput input;
  input.messages = boost::json::parse("[1, -9223372036854775808, 9223372036854775807, 1.0, 1e5]");
  EXPECT_EQ(Rendered("{{ messages }}", input),
            "[1, -9223372036854775808, 9223372036854775807, 1.0, 100000.0]");
  // OpenAPI's largest uint64, as schemas of tools have it.
  input.messages = boost::json::parse(R"({"max": 18446744073709551615, "n": 9223372036854775808})");
  EXPECT_EQ(Rendered("{{ messages.max }} {{ messages | tojson }} {{ messages.n | int }}"
                     " {{ messages.n | float }}",
                     input),
            R"(18446744073709551615 {"max": 18446744073709551615, "n": 9223372036854775808})"
            " 9223372036854775808 9.223372036854776e+18");
  EXPECT_EQ(Rendered("{{ messages.max is number }} {{ messages.max is integer }}"
                     " {{ messages.max > 1 }} {{ messages.n == messages.max }}"
                     " {{ messages.n in [messages.n] }} {{ 'x' if messages.n }}",
                     input),
            "True True True False True x");
  EXPECT_THAT(Rendered("{{ messages.max + 1 }}", input), HasSubstr("unsupported operand"));
}

TEST(ChatTemplateTest, ManyThreadsShareATemplate) {
  StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(kChatMl);
  ASSERT_TRUE(chat_template.ok());
  const ChatTemplate copy = *chat_template;
  chat_template = absl::CancelledError("gone");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  threads.reserve(texts.size());
  for (std::string& text : texts) {
    threads.emplace_back([&text, &copy] {
      for (int i = 0; i < 100; ++i) text = copy.Render(Conversation()).value_or("failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, kConversationText);
}

}  // namespace
}  // namespace flotilla
