// Anthropic's /v1/messages end to end over HTTP.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "router/api/message_list.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;

constexpr const char* kTool = R"("tools":[{"name":"f","input_schema":{"type":"object"}}])";
constexpr const char* kUser = R"("messages":[{"role":"user","content":"Hi"}])";
constexpr const char* kCall =
    "<think>Hm</think>I look. <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}";

class MessagesTest : public testing::Test {
 protected:
  HttpAnswer Ask(std::string_view fields, const char* path = "/v1/messages") {
    return Post(harness_.port(), path, StrCat(R"({"model":"smol",)", std::string(fields), "}"));
  }
  // The model writes `text`.
  HttpAnswer Write(std::string_view text, std::string_view fields) {
    const std::vector<int32_t> ids = *GetTestModel().tokenizer->Encode(std::string(text));
    harness_.engine().SetScript(ids);
    return Ask(StrCat(kUser, R"(,"max_tokens":)", ids.size(), ",", std::string(fields)));
  }
  std::string Prompt() {
    const v1::Submit sent = harness_.engine().submits().back();
    const auto& ids = sent.request().token_ids().ids();
    return GetTestModel().tokenizer->Decode({ids.data(), static_cast<size_t>(ids.size())}, false);
  }
  // Whether the message names the field, as Anthropic's errors have nothing else to name it with.
  bool Refuses(std::string_view fields, std::string_view field, int status = 400) {
    const HttpAnswer answer = Ask(fields);
    EXPECT_EQ(answer.status, status) << answer.body;
    const json::value root = ParseOrFail(answer.body);
    EXPECT_EQ(root.at("type"), "error");
    const std::string message(root.at("error").at("message").as_string());
    EXPECT_NE(message.find(field), std::string::npos) << message;
    return message.find(field) != std::string::npos;
  }

  RouterHarness harness_{WithParsers()};
};

TEST_F(MessagesTest, AnAnswerThatHasBegunGoesOn) {
  const json::value root = ParseOrFail(Ask(R"("max_tokens":1,"messages":[
      {"role":"user","content":"2 and 2?"},{"role":"assistant","content":"That is <"}])")
                                           .body);
  EXPECT_EQ(root.at("type"), "message");
  EXPECT_TRUE(
      Prompt().ends_with("<|im_start|>user\n2 and 2?<|im_end|>\n<|im_start|>assistant\nThat is <"))
      << Prompt();
}

TEST_F(MessagesTest, AnswersWhole) {
  const json::value root =
      ParseOrFail(Write("Four.", R"("system":[{"type":"text","text":"Be brief."}])").body);
  EXPECT_TRUE(root.at("id").as_string().starts_with("msg_"));
  EXPECT_EQ(root.at("type"), "message");
  EXPECT_EQ(root.at("role"), "assistant");
  EXPECT_EQ(root.at("content").at(0).at("text"), "Four.");
  EXPECT_EQ(root.at("stop_reason"), "max_tokens");
  EXPECT_TRUE(root.at("stop_sequence").is_null());
  const json::value& usage = root.at("usage");
  EXPECT_EQ(usage.at("input_tokens").as_int64() + usage.at("cache_read_input_tokens").as_int64(),
            harness_.engine().submits().back().request().token_ids().ids_size());
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST_F(MessagesTest, ThoughtsTextAndCallsAreBlocks) {
  const json::value root = ParseOrFail(Write(kCall, kTool).body);
  const json::array& content = root.at("content").as_array();
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0].at("thinking"), "Hm");
  EXPECT_EQ(content[1].at("text"), "I look.");
  EXPECT_EQ(content[2].at("type"), "tool_use");
  EXPECT_EQ(content[2].at("name"), "f");
  EXPECT_EQ(content[2].at("input").at("a"), 1);
}

TEST_F(MessagesTest, AStreamTellsBlockAfterBlock) {
  const HttpAnswer answer = Write(kCall, StrCat(kTool, R"(,"stream":true)"));
  std::string shape, last, arguments;
  for (const std::string& event : Events(answer.body)) {
    const json::value root = ParseOrFail(event);
    const std::string type(root.at("type").as_string());
    if (type == "content_block_delta" && root.at("delta").at("type") == "input_json_delta")
      arguments += std::string(root.at("delta").at("partial_json").as_string());
    if (type == "content_block_start") {
      EXPECT_EQ(root.at("index").as_int64(), std::count(shape.begin(), shape.end(), '|'));
    }
    if (type == "message_delta") {
      EXPECT_EQ(root.at("delta").at("stop_reason"), "max_tokens");
    }
    if (type != last) shape += type + (type == "content_block_stop" ? "| " : " ");
    last = type;
  }
  EXPECT_EQ(shape,
            "message_start content_block_start content_block_delta content_block_stop| "
            "content_block_start content_block_delta content_block_stop| "
            "content_block_start content_block_delta content_block_stop| "
            "message_delta message_stop ");
  EXPECT_EQ(arguments, "{\"a\":1}");
}

TEST_F(MessagesTest, BlocksBecomeTheConversation) {
  Ask(R"("max_tokens":1,"system":"s","messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"text","text":"I look."},
        {"type":"tool_use","id":"1","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"42"}]},
        {"type":"text","text":"So?"}]}])");
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>"
            "assistant\nI look.<|im_end|>\n"
            "<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST_F(MessagesTest, TurnsOfOneRoleBehindEachOtherAreOne) {
  Ask(R"("max_tokens":1,"system":"s","messages":[{"role":"user","content":"a"},
      {"role":"user","content":[{"type":"text","text":"b"}]},
      {"role":"assistant","content":"c"},
      {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"}]},
      {"role":"user","content":"d"},{"role":"user","content":"e"}])");
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>"
            "assistant\nc<|im_end|>\n"
            "<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nd\ne<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(CombineTurnsTest, CallsAndThoughtsOfTwoTurnsAreThoseOfOne) {
  v1::ChatRequest request;
  MessageList list(&request);
  list.AddReasoning("r1");
  list.AddCall("1", "f", json::object());
  list.Finish();
  list.AddReasoning("r2");
  list.AddCall("2", "g", json::object());
  list.Finish();
  CombineTurns(&request);
  ASSERT_EQ(request.messages_size(), 1);
  EXPECT_EQ(request.messages(0).reasoning_content(), "r1\nr2");
  const json::value calls = ParseOrFail(request.messages(0).tool_calls_json());
  ASSERT_EQ(calls.as_array().size(), 2u);
  EXPECT_EQ(calls.at(0).at("function").at("name"), "f");
  EXPECT_EQ(calls.at(1).at("function").at("name"), "g");
}

// Claude Code says something as the system behind nearly every turn.
TEST_F(MessagesTest, WhatTheSystemSaysBetweenTurnsChangesNothingBefore) {
  const std::string first = R"({"role":"user","content":"a"},{"role":"system","content":"s1"},
      {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"}]},
      {"role":"system","content":[{"type":"text","text":"9 tokens left"}]})";
  const auto ask = [&](std::string_view more) {
    Ask(StrCat(R"("max_tokens":1,"system":"s","messages":[)", first, more, "]"));
    return Prompt();
  };
  const std::string prompt = ask("");
  EXPECT_EQ(prompt,
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na\n\ns1<|im_end|>\n<|im_start|>"
            "assistant\n<|im_end|>\n<|im_start|>tool\n42\n\n9 tokens left<|im_end|>\n"
            "<|im_start|>assistant\n");
  const std::string_view turns = std::string_view(prompt).substr(0, prompt.rfind("<|im_start|>"));
  EXPECT_TRUE(ask(R"(,{"role":"assistant","content":"b"},{"role":"system","content":"s2"},
                      {"role":"user","content":"c"})")
                  .starts_with(turns));
}

TEST_F(MessagesTest, AHeaderThatChangesWithEachRequestIsLeftOut) {
  const auto prompt = [&](std::string_view system) {
    Ask(StrCat(kUser, R"(,"max_tokens":1,"system":)", system));
    return Prompt();
  };
  const std::string without = prompt(R"("Be brief.")");
  EXPECT_EQ(prompt(R"([{"type":"text","text":"x-anthropic-billing-header: cch=1;"},
                       {"type":"text","text":"Be brief."}])"),
            without);
  EXPECT_EQ(prompt(R"("x-anthropic-billing-header: cch=2;\nBe brief.")"), without);
  EXPECT_EQ(prompt(R"("x-anthropic-billing-header: cch=3;")").find("cch"), std::string::npos);
}

TEST(FoldSystemTurnsTest, EveryPlaceHasItsRule) {
  // A word is a message: its role's first letter, then its text.
  const auto fold = [](std::vector<std::string> words) {
    v1::ChatRequest request;
    for (const std::string& word : words) {
      const char role = word[0];
      v1::ChatMessage* message = request.add_messages();
      message->set_role(role == 's'   ? "system"
                        : role == 'd' ? "developer"
                        : role == 'u' ? "user"
                        : role == 't' ? "tool"
                                      : "assistant");
      message->set_content(word.substr(1));
    }
    FoldSystemTurns(&request);
    std::string out;
    for (const v1::ChatMessage& message : request.messages())
      out += StrCat(out.empty() ? "" : " ", message.role().substr(0, 1), message.content());
    return out;
  };
  EXPECT_EQ(fold({"s1", "d2", "u3"}), "s1\n\n2 u3");
  EXPECT_EQ(fold({"u1", "s2", "s3", "a4"}), "u1\n\n2\n\n3 a4");
  EXPECT_EQ(fold({"u1", "a2", "s3", "u4"}), "u1 a2 u3\n\n4");
  EXPECT_EQ(fold({"u1", "a2", "s3", "s4", "t5", "t6"}), "u1 a2 t5\n\n3\n\n4 t6");
  EXPECT_EQ(fold({"u1", "a2", "s3", "a4", "u5"}), "u1 a2 u3 a4 u5");
  EXPECT_EQ(fold({"u1", "a2", "s3"}), "u1 a2 u3");
  EXPECT_EQ(fold({"u1", "a2", "s", "u3"}), "u1 a2 u3");
  EXPECT_EQ(fold({"s1"}), "s1");
  EXPECT_EQ(fold({}), "");
}

TEST_F(MessagesTest, ATextFileIsText) {
  Ask(R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"document","title":"n.txt",
      "source":{"type":"text","media_type":"text/plain","data":"two"}},
      {"type":"text","text":"Sum it up."}]}])");
  EXPECT_NE(Prompt().find("user\nn.txt\ntwo\nSum it up.<|im_end|>"), std::string::npos) << Prompt();
}

TEST_F(MessagesTest, ThinkingMayBeLeftToTheModel) {
  EXPECT_EQ(Write("x", R"("thinking":{"type":"adaptive"})").status, 200);
}

TEST_F(MessagesTest, AStrictToolHoldsItsCalls) {
  const auto kind = [&](const char* strict) {
    Write("x", StrCat(R"("tools":[{"name":"f","strict":)", strict,
                      R"(,"input_schema":{"type":"object"}}])"));
    return harness_.engine().submits().back().request().structured().kind_case();
  };
  EXPECT_EQ(kind("false"), v1::StructuredOutput::KIND_NOT_SET);
  EXPECT_EQ(kind("true"), v1::StructuredOutput::kStructuralTag);
}

TEST_F(MessagesTest, AThoughtHasABudget) {
  Write("<think>Hm</think>x", R"("thinking":{"type":"enabled","budget_tokens":3})");
  const json::value tag =
      ParseOrFail(harness_.engine().submits().back().request().structured().structural_tag());
  EXPECT_EQ(
      tag.at("format").at("elements").at(0).at("content").at("elements").at(1).at("max_tokens"), 3);
}

TEST_F(MessagesTest, AnOutputFormatIsAGrammar) {
  EXPECT_EQ(Write("x", R"("output_config":{"effort":"low"},"context_management":
                           {"edits":[{"type":"clear_thinking_20251015","keep":"all"}]})")
                .status,
            200);
  EXPECT_FALSE(harness_.engine().submits().back().request().has_structured());
  Write("x", R"("output_config":{"format":{"type":"json_schema","schema":{"type":"null"}}})");
  EXPECT_EQ(SchemaBehindThought(harness_.engine().submits().back().request()),
            R"({"type":"null"})");
}

TEST_F(MessagesTest, StopSequencesReachTheReplica) {
  Write("x", R"("stop_sequences":["END"])");
  EXPECT_EQ(harness_.engine().submits().back().request().stopping().stop(0), "END");
}

TEST_F(MessagesTest, ToolChoiceAnyIsAGrammar) {
  Write("[]", StrCat(kTool, R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})"));
  const json::value schema =
      ParseOrFail(SchemaBehindThought(harness_.engine().submits().back().request()));
  EXPECT_EQ(schema.at("type"), "array");
  EXPECT_EQ(schema.at("maxItems"), 1);
}

TEST_F(MessagesTest, CountsTheTokensThatItWouldTake) {
  const HttpAnswer counted = Ask(kUser, "/v1/messages/count_tokens");
  ASSERT_EQ(counted.status, 200) << counted.body;
  EXPECT_TRUE(harness_.engine().submits().empty());
  Write("x", R"("seed":1)");
  EXPECT_EQ(ParseOrFail(counted.body).at("input_tokens").as_int64(),
            harness_.engine().submits().back().request().token_ids().ids_size());
}

TEST_F(MessagesTest, ErrorsNameTheFieldAndHaveTheirForm) {
  const auto with = [](std::string_view more) {
    return StrCat(kUser, R"(,"max_tokens":1,)", more);
  };
  Refuses(kUser, "'max_tokens'");
  Refuses(R"("max_tokens":1)", "'messages'");
  Refuses(R"("max_tokens":1,"messages":[])", "'messages'");
  Refuses(R"("max_tokens":1,"messages":[{"role":"tool","content":"x"}])", "'messages[0].role'");
  Refuses(R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"document",
             "source":{"type":"base64","data":"x"}}]}])",
          "'messages[0].content[0].source.type'");
  Refuses(with(R"("output_config":{"effort":1})"), "'output_config.effort'");
  Refuses(with(R"("chat_template_kwargs":1)"), "'chat_template_kwargs'");
  Refuses(with(R"("context_management":1)"), "'context_management'");
  Refuses(R"("max_tokens":1,"messages":[{"role":"user"}])", "'messages[0].content'");
  Refuses(R"("max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}])",
          "'messages[0].content[0].type'");
  Refuses(R"("max_tokens":1,"messages":[{"role":"assistant","content":" "}])", "'messages'", 400);
  Refuses(R"("max_tokens":1,"messages":[{"role":"assistant","content":[
             {"type":"text","text":"x"},{"type":"tool_use","id":"1","name":"f","input":{}}]}])",
          "'messages' end with calls", 400);
  Refuses(with(R"("system":7)"), "'system'");
  Refuses(with(R"("stop_sequences":"x")"), "'stop_sequences'");
  Refuses(with(R"("tools":[{"name":"f"}])"), "'tools[0].input_schema'");
  Refuses(with(R"("tools":[{"type":"bash_20250124","name":"bash"}])"), "'tools[0].type'", 400);
  Refuses(with(StrCat(kTool, R"(,"tool_choice":{"type":"tool","name":"g"})")),
          "'tool_choice.name'");
  Refuses(with(StrCat(kTool, R"(,"tool_choice":{"type":"maybe"})")), "'tool_choice.type'");
  Refuses(with(R"("thinking":{"type":"hidden"})"), "'thinking.type'");
  Refuses(with(R"("thinking":{"type":"enabled","budget_tokens":"x"})"), "'thinking.budget_tokens'");
  Refuses(with(R"("container":"x")"), "'container'", 400);
  // As Anthropic's clients look for it.
  const auto long_prompt = [](int words, int max_tokens) {
    std::string text;
    for (int i = 0; i < words; ++i) text += "x ";
    return StrCat(R"("max_tokens":)", max_tokens, R"(,"messages":[{"role":"user","content":")",
                  text, R"("}])");
  };
  Refuses(long_prompt(3000, 1), "prompt is too long: ");
  Refuses(long_prompt(3000, 1), " tokens > 2047 maximum");
  Refuses(long_prompt(10, 2048), "input length and `max_tokens` exceed context limit: ");
  Refuses(long_prompt(10, 2048),
          " + 2048 > 2048, decrease input length or `max_tokens` and try again");
  Refuses(long_prompt(3'000'000, 1), "prompt is too long: ");
  const HttpAnswer unknown =
      Post(harness_.port(), "/v1/messages", R"({"model":"gpt","max_tokens":1,"messages":[]})");
  EXPECT_EQ(ParseOrFail(unknown.body).at("error").at("type"), "not_found_error");
  EXPECT_TRUE(harness_.engine().submits().empty());
}

}  // namespace
}  // namespace flotilla
