// /v1/chat/completions end to end over HTTP, with SmolLM2's own template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class ChatHttpTest : public testing::Test {
 protected:
  HttpAnswer Chat(std::string_view body) {
    return Post(harness_.port(), "/v1/chat/completions", body);
  }
  json::value Json(std::string_view body) {
    const HttpAnswer answer = Chat(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body);
  }
  // The prompt's text as the replica got it.
  std::string Prompt(size_t submit = 0) {
    const v1::Submit sent = harness_.engine().submits()[submit];
    const auto& ids = sent.request().token_ids().ids();
    return GetTestModel().tokenizer->Decode({ids.data(), static_cast<size_t>(ids.size())}, false);
  }
  std::string Expected(size_t submit = 0) {
    return GetTestModel().tokenizer->Decode(
        harness_.engine().AnswerIds(harness_.engine().submits()[submit].request()), true);
  }
  // The field that the error names.
  std::string Refused(std::string_view fields, int status = 400) {
    const HttpAnswer answer = Chat(StrCat(R"({"model":"smol",)", std::string(fields), "}"));
    EXPECT_EQ(answer.status, status) << answer.body;
    return ErrorField(answer, "param");
  }

  RouterHarness harness_;
};

constexpr const char* kHello = R"("messages":[{"role":"user","content":"Hello"}])";

TEST_F(ChatHttpTest, AnswersWhole) {
  const json::value root = Json(
      R"({"model":"smol","messages":[{"role":"system","content":"Be brief."},
          {"role":"user","content":"Hello"}],"max_completion_tokens":5,"seed":1})");
  EXPECT_TRUE(root.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(root.at("object"), "chat.completion");
  EXPECT_EQ(root.at("model"), "smol");
  EXPECT_EQ(root.at("system_fingerprint"), "fp-fake");
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(std::string(choice.at("message").at("content").as_string()), Expected());
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 5);
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST_F(ChatHttpTest, ContentMayBeTextParts) {
  Json(R"({"model":"smol","max_tokens":1,"messages":[{"role":"user","content":[
          {"type":"text","text":"one"},{"type":"text","text":"two"}]}]})");
  EXPECT_THAT(Prompt(), HasSubstr("<|im_start|>user\none\ntwo<|im_end|>"));
}

TEST_F(ChatHttpTest, WithoutGenerationPromptTheTurnStaysOpen) {
  Json(StrCat(R"({"model":"smol","max_tokens":1,"add_generation_prompt":false,)", kHello, "}"));
  EXPECT_TRUE(Prompt().ends_with("<|im_end|>\n")) << Prompt();
}

TEST_F(ChatHttpTest, TheFinalMessageMayBeGoneOnWith) {
  const auto body = [](std::string_view more, std::string_view text) {
    return StrCat(R"({"model":"smol","max_tokens":1,"continue_final_message":true,)", more,
                  R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":")",
                  text, R"("}]})");
  };
  Json(body(R"("add_generation_prompt":false,)", "I say im_end: "));
  EXPECT_TRUE(Prompt().ends_with("<|im_start|>assistant\nI say im_end: ")) << Prompt();
  EXPECT_EQ(Refused(R"("messages":[{"role":"user","content":""}],"continue_final_message":true)"),
            "messages");
  EXPECT_EQ(
      Refused(StrCat(kHello, R"(,"continue_final_message":true,"add_generation_prompt":true)")),
      "continue_final_message");
}

TEST_F(ChatHttpTest, WhatAnAssistantRefusedIsText) {
  Json(StrCat(R"({"model":"smol","max_tokens":1,"messages":[{"role":"user","content":"x"},
          {"role":"assistant","content":[{"type":"refusal","refusal":"I won't."}]},
          {"role":"user","content":"y"}]})"));
  EXPECT_THAT(Prompt(), HasSubstr("<|im_start|>assistant\nI won't.<|im_end|>"));
}

TEST_F(ChatHttpTest, OtherServersFieldsAreNotDroppedInSilence) {
  for (const char* field : {"n_predict", "thinking_token_budget", "vllm_xargs", "logprob_token_ids",
                            "web_search_options"})
    EXPECT_EQ(Refused(StrCat(kHello, ",\"", field, "\":{\"x\":1}")), field);
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"thinking_token_budget":-1)")), "thinking_token_budget");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"web_search_options":{})")), "web_search_options");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"reasoning_effort":7)")), "reasoning_effort");
}

TEST_F(ChatHttpTest, MaxTokensIsWhatTheContextLeavesUnlessSet) {
  Chat(StrCat(R"({"model":"smol",)", kHello,
              R"(,"stop":["zzz"],"max_tokens":7,"max_completion_tokens":3})"));
  const v1::GenerateRequest sent = harness_.engine().submits()[0].request();
  EXPECT_EQ(sent.stopping().max_tokens(), 3) << "the newer name wins";
  EXPECT_EQ(sent.stopping().stop(0), "zzz");
  const std::string stop_at_once = R"(,"temperature":0,"stop_token_ids":[0,1,2]})";
  Chat(StrCat(R"({"model":"smol",)", kHello, stop_at_once));
  const v1::GenerateRequest open = harness_.engine().submits()[1].request();
  EXPECT_EQ(open.stopping().max_tokens() + open.token_ids().ids_size(), 2048);
}

TEST_F(ChatHttpTest, StreamsTheSameTextAndSaysWhoSpeaksFirst) {
  const HttpAnswer answer =
      Chat(StrCat(R"({"model":"smol","stream":true,"stream_options":{"include_usage":true},
                 "max_tokens":20,"seed":3,)",
                  kHello, "}"));
  ASSERT_EQ(answer.status, 200);
  const std::vector<std::string> events = Events(answer.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  const json::value first = ParseOrFail(events[0]);
  EXPECT_EQ(first.at("object"), "chat.completion.chunk");
  EXPECT_EQ(json::serialize(first.at("choices").at(0).at("delta")),
            R"({"role":"assistant","content":""})");
  std::string text;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const json::value chunk = ParseOrFail(events[i]);
    const json::value& choice = chunk.at("choices").at(0);
    const json::object& delta = choice.at("delta").as_object();
    EXPECT_FALSE(delta.contains("role")) << "only once";
    if (delta.contains("content")) text += std::string(delta.at("content").as_string());
    EXPECT_EQ(choice.at("finish_reason").is_null(), i + 3 < events.size());
    EXPECT_TRUE(chunk.at("usage").is_null());
  }
  EXPECT_EQ(text, Expected());
  const json::value usage = ParseOrFail(events[events.size() - 2]);
  EXPECT_EQ(usage.at("object"), "chat.completion.chunk");
  EXPECT_EQ(usage.at("usage").at("completion_tokens").as_int64(), 20);
}

TEST_F(ChatHttpTest, LogprobsHaveBytesThatJoinToTheText) {
  const std::string text = "naïve 😀";
  harness_.engine().SetScript(*GetTestModel().tokenizer->Encode(text));
  const size_t count = GetTestModel().tokenizer->Encode(text)->size();
  const json::value root = Json(StrCat(R"({"model":"smol","logprobs":true,"top_logprobs":2,)",
                                       R"("max_tokens":)", count, ",", kHello, "}"));
  const json::array& content = root.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), count);
  std::string joined;
  for (const json::value& entry : content) {
    for (const json::value& byte : entry.at("bytes").as_array())
      joined.push_back(static_cast<char>(byte.as_int64()));
    EXPECT_EQ(entry.at("top_logprobs").as_array().size(), 2u);
    EXPECT_LE(entry.at("logprob").as_double(), 0);
  }
  EXPECT_EQ(joined, text);
}

TEST_F(ChatHttpTest, TokenIdsOnRequest) {
  const json::value root = Json(
      StrCat(R"({"model":"smol","return_token_ids":true,"max_tokens":3,"seed":1,)", kHello, "}"));
  EXPECT_EQ(root.at("choices").at(0).at("token_ids").as_array().size(), 3u);
  EXPECT_GT(root.at("prompt_token_ids").as_array().size(), 3u);
}

TEST_F(ChatHttpTest, ErrorsNameTheField) {
  EXPECT_EQ(Refused(R"("x":1)"), "messages");
  EXPECT_EQ(Refused(R"("messages":[])"), "messages");
  EXPECT_EQ(Refused(R"("messages":"hi")"), "messages");
  EXPECT_EQ(Refused(R"("messages":[7])"), "messages[0]");
  EXPECT_EQ(Refused(R"("messages":[{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(Refused(R"("messages":[{"role":"robot","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(Refused(R"("messages":[{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(Refused(R"("messages":[{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(Refused(R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(Refused(R"("messages":[{"role":"user","content":[{"type":"text"}]}])"),
            "messages[0].content[0].text");
  EXPECT_EQ(Refused(R"("messages":[{"role":"assistant","tool_calls":[{}]}])"),
            "messages[0].tool_calls");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"top_logprobs":3)")), "top_logprobs");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"logprobs":true,"top_logprobs":21)")), "top_logprobs");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"logprobs":3)")), "logprobs");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"chat_template":"{{ 1 }}")")), "chat_template");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"chat_template_kwargs":[])")), "chat_template_kwargs");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"max_tokens":5000)")), "max_tokens");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"temperature":9)")), "temperature");
  EXPECT_EQ(Refused(StrCat(kHello, R"(,"continue_final_message":"x")")), "continue_final_message");
  for (const char* wish :
       {R"("functions":[{"name":"f"}])", R"("function_call":"auto")", R"("documents":[{}])",
        R"("echo":true)", R"("modalities":["text","audio"])", R"("store":true)",
        R"("include_reasoning":false)", R"("cache_salt":"mine")", R"("audio":{"voice":"x"})"}) {
    const std::string_view field = std::string_view(wish).substr(1);
    EXPECT_EQ(Refused(StrCat(kHello, ",", wish)), field.substr(0, field.find('"')));
  }
  std::string many;
  for (int i = 0; i < 1025; ++i) many += R"({"role":"user","content":"x"},)";
  many.pop_back();
  EXPECT_EQ(Refused(StrCat(R"("messages":[)", many, "]")), "messages");
  EXPECT_TRUE(harness_.engine().submits().empty()) << "no replica saw any of these";
}

TEST_F(ChatHttpTest, StreamsTheUsageSoFarIfAsked) {
  const HttpAnswer answer =
      Post(harness_.port(), "/v1/chat/completions",
           StrCat(R"({"model":"smol","max_tokens":3,"stream":true,"stream_options":)",
                  R"({"include_usage":true,"continuous_usage_stats":true},)", kHello, "}"));
  const std::vector<std::string> events = Events(answer.body);
  ASSERT_GE(events.size(), 5u);
  for (size_t i = 0; i + 2 < events.size(); ++i)
    EXPECT_TRUE(ParseOrFail(events[i]).at("usage").is_object()) << events[i];
  const json::value last = ParseOrFail(events[events.size() - 3]);
  EXPECT_EQ(last.at("usage").at("completion_tokens").as_int64(), 3);
}

TEST_F(ChatHttpTest, WhatWishesNothingPasses) {
  Json(StrCat(R"({"model":"smol","max_tokens":1,"functions":[],"function_call":"none",)",
              R"("documents":[],"echo":false,"modalities":["text"],"store":false,"audio":null,)",
              R"("include_reasoning":true,"chat_template":null,"continue_final_message":false,)",
              kHello, "}"));
}

TEST_F(ChatHttpTest, ToolsAreLeftOutIfNobodyMayCallThem) {
  Json(StrCat(R"({"model":"smol","max_tokens":1,"tool_choice":"none",
                  "tools":[{"type":"function","function":{"name":"f"}}],)",
              kHello, "}"));
  EXPECT_EQ(Prompt().find("function"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
