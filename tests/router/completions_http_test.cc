// /v1/completions end to end over HTTP: whole and streamed answers, echo, logprobs, batches.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;

class CompletionsHttpTest : public testing::Test {
 protected:
  std::string Expected(size_t submit = 0) {
    return GetTestModel().tokenizer->Decode(Ids(submit), true);
  }
  std::vector<int32_t> Ids(size_t submit = 0) {
    return harness_.engine().AnswerIds(harness_.engine().submits()[submit].request());
  }
  json::value Json(std::string_view body) {
    const HttpAnswer answer = harness_.Complete(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body);
  }

  RouterHarness harness_;
};

TEST_F(CompletionsHttpTest, AnswersWhole) {
  const json::value root =
      Json(R"({"model":"smol","prompt":"Hello there","max_tokens":5,"seed":1})");
  EXPECT_TRUE(root.at("id").as_string().starts_with("cmpl-"));
  EXPECT_EQ(root.at("object"), "text_completion");
  EXPECT_EQ(root.at("model"), "smol");
  EXPECT_EQ(root.at("system_fingerprint"), "fp-fake");
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(std::string(choice.at("text").as_string()), Expected());
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  const json::value& usage = root.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens").as_int64(), 2);
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 5);
  EXPECT_EQ(usage.at("total_tokens").as_int64(), 7);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(), 1);
}

TEST_F(CompletionsHttpTest, SubmitsWhatTheClientAskedFor) {
  Json(R"({"model":"smol","prompt":"Hello there","temperature":0.5,"top_p":0.9,"top_k":7,
           "min_p":0.25,"presence_penalty":1.5,"frequency_penalty":-0.5,"repetition_penalty":1.25,
           "logit_bias":{"7":-100,"40000":2.5},"seed":42,"stop":["a","bc"],"stop_token_ids":[5,6],"min_tokens":2,
           "ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false})");
  const v1::GenerateRequest sent = harness_.engine().submits()[0].request();
  EXPECT_EQ(sent.token_ids().ids_size(), 2);
  EXPECT_FLOAT_EQ(sent.sampling().temperature(), 0.5f);
  EXPECT_FLOAT_EQ(sent.sampling().top_p(), 0.9f);
  EXPECT_EQ(sent.sampling().top_k(), 7);
  EXPECT_FLOAT_EQ(sent.sampling().min_p(), 0.25f);
  EXPECT_FLOAT_EQ(sent.sampling().presence_penalty(), 1.5f);
  EXPECT_FLOAT_EQ(sent.sampling().frequency_penalty(), -0.5f);
  EXPECT_FLOAT_EQ(sent.sampling().repetition_penalty(), 1.25f);
  EXPECT_EQ(sent.sampling().logit_bias_size(), 2);
  EXPECT_FLOAT_EQ(sent.sampling().logit_bias().at(7), -100);
  EXPECT_FLOAT_EQ(sent.sampling().logit_bias().at(40000), 2.5f);
  EXPECT_EQ(sent.sampling().seed(), 42u);
  EXPECT_EQ(sent.stopping().max_tokens(), 16) << "OpenAI's default";
  EXPECT_EQ(sent.stopping().min_tokens(), 2);
  EXPECT_EQ(sent.stopping().stop(1), "bc");
  EXPECT_EQ(sent.stopping().stop_token_ids(1), 6);
  EXPECT_TRUE(sent.stopping().ignore_eos());
  EXPECT_TRUE(sent.stopping().include_stop_str_in_output());
  EXPECT_FALSE(sent.output().skip_special_tokens());
}

TEST_F(CompletionsHttpTest, TheDefaultOfMaxTokensIsWhatFits) {
  std::string ids = "1";
  for (int i = 1; i < 2038; ++i) ids += ",1";
  Json(StrCat(R"({"model":"smol","prompt":[[1,2],[)", ids, "]]}"));
  const auto submits = harness_.engine().submits();
  ASSERT_EQ(submits.size(), 2u);
  for (const v1::Submit& submit : submits) {
    const bool is_long = submit.request().token_ids().ids_size() == 2038;
    EXPECT_EQ(submit.request().stopping().max_tokens(), is_long ? 10 : 16);
  }
}

TEST_F(CompletionsHttpTest, SetsTheSeedIfThereIsNone) {
  Json(R"({"model":"smol","prompt":"Hi","temperature":0})");
  Json(R"({"model":"smol","prompt":"Hi"})");
  Json(R"({"model":"smol","prompt":"Hi"})");
  const auto submits = harness_.engine().submits();
  EXPECT_EQ(submits[0].request().sampling().seed(), 0u);
  EXPECT_TRUE(submits[1].request().sampling().has_seed());
  EXPECT_NE(submits[1].request().sampling().seed(), submits[2].request().sampling().seed());
}

TEST_F(CompletionsHttpTest, TakesOtherServersNames) {
  Json(R"({"model":"smol","prompt":"Hi","repeat_penalty":1.5,"no_stop_trim":true,"seed":-1})");
  Json(R"({"model":"smol","prompt":"Hi","seed":-1})");
  Json(R"({"model":"smol","prompt":"Hi","seed":-2})");
  const auto submits = harness_.engine().submits();
  EXPECT_FLOAT_EQ(submits[0].request().sampling().repetition_penalty(), 1.5f);
  EXPECT_TRUE(submits[0].request().stopping().include_stop_str_in_output());
  EXPECT_NE(submits[0].request().sampling().seed(), submits[1].request().sampling().seed())
      << "-1 is any seed";
  EXPECT_EQ(submits[2].request().sampling().seed(), static_cast<uint64_t>(-2));
}

TEST_F(CompletionsHttpTest, StreamsTheSameText) {
  const HttpAnswer answer = harness_.Complete(
      R"({"model":"smol","prompt":"Hello","max_tokens":20,"seed":3,"stream":true,
          "stream_options":{"include_usage":true}})");
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<std::string> events = Events(answer.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(StreamText(events), Expected());
  const json::value usage = ParseOrFail(events[events.size() - 2]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens").as_int64(), 20);
  EXPECT_TRUE(ParseOrFail(events[0]).at("usage").is_null());
  const json::value last = ParseOrFail(events[events.size() - 3]);
  EXPECT_EQ(last.at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(CompletionsHttpTest, StreamsWithoutUsageUnlessAsked) {
  const HttpAnswer answer =
      harness_.Complete(R"({"model":"smol","prompt":"Hello","max_tokens":2,"stream":true})");
  for (const std::string& event : Events(answer.body))
    EXPECT_EQ(event.find("usage"), std::string::npos) << event;
}

TEST_F(CompletionsHttpTest, StreamsTheUsageSoFarIfAsked) {
  const HttpAnswer answer = harness_.Complete(
      R"({"model":"smol","prompt":"Hello there","max_tokens":3,"stream":true,
          "stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  std::vector<std::string> usages;
  for (const std::string& event : Events(answer.body)) {
    if (event != "[DONE]") usages.push_back(json::serialize(ParseOrFail(event).at("usage")));
  }
  ASSERT_EQ(usages.size(), 4u);
  EXPECT_EQ(usages[0], R"({"prompt_tokens":2,"completion_tokens":1,"total_tokens":3})");
  EXPECT_EQ(usages[2], R"({"prompt_tokens":2,"completion_tokens":3,"total_tokens":5})");
  EXPECT_EQ(ParseOrFail(usages[3]).at("total_tokens").as_int64(), 5);
}

TEST_F(CompletionsHttpTest, CharactersSplitOverTokensComeWhole) {
  const std::string text = "naïve 😀 日本語";
  harness_.engine().SetScript(*GetTestModel().tokenizer->Encode(text));
  const size_t count = GetTestModel().tokenizer->Encode(text)->size();
  const HttpAnswer answer = harness_.Complete(
      StrCat(R"({"model":"smol","prompt":"x","stream":true,"max_tokens":)", count, "}"));
  EXPECT_EQ(StreamText(Events(answer.body)), text);
}

TEST_F(CompletionsHttpTest, TakesTokenIdsAndReturnsThem) {
  const json::value root = Json(
      R"({"model":"smol","prompt":[10,11,12],"max_tokens":3,"return_token_ids":true,"seed":0})");
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(json::serialize(choice.at("prompt_token_ids")), "[10,11,12]");
  ASSERT_EQ(choice.at("token_ids").as_array().size(), 3u);
  EXPECT_EQ(choice.at("token_ids").at(0).as_int64(), Ids()[0]);
}

TEST_F(CompletionsHttpTest, BatchesAnswerEachPromptAtItsIndex) {
  const json::value root =
      Json(R"({"model":"smol","prompt":["one","two two","three"],"max_tokens":4,"seed":9})");
  ASSERT_EQ(root.at("choices").as_array().size(), 3u);
  for (const v1::Submit& submit : harness_.engine().submits()) {
    const auto& ids = submit.request().token_ids().ids();
    const std::string prompt =
        GetTestModel().tokenizer->Decode({ids.data(), static_cast<size_t>(ids.size())}, false);
    const size_t index = prompt == "one" ? 0 : prompt == "two two" ? 1 : 2;
    const std::string text =
        GetTestModel().tokenizer->Decode(harness_.engine().AnswerIds(submit.request()), true);
    EXPECT_EQ(std::string(root.at("choices").at(index).at("text").as_string()), text);
  }
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 12);
}

TEST_F(CompletionsHttpTest, BatchesStreamWithTheirIndices) {
  const HttpAnswer answer = harness_.Complete(
      R"({"model":"smol","prompt":[[5,6],[7,8,9]],"max_tokens":4,"seed":9,"stream":true})");
  std::set<int64_t> finished;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json::value root = ParseOrFail(event);
    const json::value& choice = root.at("choices").at(0);
    if (choice.at("finish_reason").is_string()) finished.insert(choice.at("index").as_int64());
  }
  EXPECT_EQ(finished, std::set<int64_t>({0, 1}));
}

TEST_F(CompletionsHttpTest, LogprobsInOpenAisForm) {
  const json::value root =
      Json(R"({"model":"smol","prompt":"Hello","max_tokens":3,"seed":4,"logprobs":2})");
  const json::value& logprobs = root.at("choices").at(0).at("logprobs");
  const std::vector<int32_t> ids = Ids();
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    ASSERT_EQ(logprobs.at(name).as_array().size(), 3u) << name;
  EXPECT_EQ(std::string(logprobs.at("tokens").at(1).as_string()),
            GetTestModel().tokenizer->Decode({&ids[1], 1}, false));
  EXPECT_FLOAT_EQ(logprobs.at("token_logprobs").at(0).to_number<float>(),
                  -0.5f - static_cast<float>(ids[0] % 100) / 128.0f);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).as_object().size(), 2u)
      << "the token itself is the second most likely one";
  EXPECT_EQ(logprobs.at("text_offset").at(0).as_int64(), 0);
}

TEST_F(CompletionsHttpTest, TokensAsTokenIds) {
  const json::value root = Json(R"({"model":"smol","prompt":"Hello","max_tokens":2,"seed":4,
                                    "logprobs":1,"return_tokens_as_token_ids":true})");
  EXPECT_EQ(std::string(root.at("choices").at(0).at("logprobs").at("tokens").at(0).as_string()),
            StrCat("token_id:", Ids()[0]));
}

TEST_F(CompletionsHttpTest, EchoWithLogprobsCoversThePrompt) {
  const std::string prompt = "Once upon a time in a far land";
  const std::vector<int32_t> prompt_ids = *GetTestModel().tokenizer->Encode(prompt);
  const json::value root = Json(StrCat(R"({"model":"smol","max_tokens":2,"seed":4,"echo":true,)",
                                       R"("logprobs":1,"prompt":")", prompt, "\"}"));
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(std::string(choice.at("text").as_string()), prompt + Expected());
  const json::value& logprobs = choice.at("logprobs");
  ASSERT_EQ(logprobs.at("tokens").as_array().size(), prompt_ids.size() + 2);
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("token_logprobs").at(1).is_number());
  EXPECT_EQ(logprobs.at("text_offset").at(prompt_ids.size()).as_int64(),
            static_cast<int64_t>(prompt.size()));
}

TEST_F(CompletionsHttpTest, EchoStreamsThePromptFirst) {
  const HttpAnswer answer =
      harness_.Complete(R"({"model":"smol","prompt":"Once upon a time","max_tokens":2,"seed":4,
                            "echo":true,"logprobs":0,"stream":true})");
  const std::vector<std::string> events = Events(answer.body);
  const json::value first = ParseOrFail(events[0]);
  EXPECT_TRUE(first.at("choices").at(0).at("text").as_string().starts_with("Once upon a time"));
  EXPECT_EQ(StreamText(events), "Once upon a time" + Expected());
}

TEST_F(CompletionsHttpTest, EchoWithoutOutputScoresThePrompt) {
  const json::value root =
      Json(R"({"model":"smol","prompt":[10,11,12],"max_tokens":0,"echo":true,"logprobs":1})");
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(), 3u);
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 0);
  const std::vector<int32_t> ids = {10, 11, 12};
  EXPECT_EQ(std::string(choice.at("text").as_string()),
            GetTestModel().tokenizer->Decode(ids, false));
}

TEST_F(CompletionsHttpTest, PromptLogprobsInVllmsForm) {
  const json::value root =
      Json(R"({"model":"smol","prompt":[10,11,12],"max_tokens":1,"prompt_logprobs":3})");
  const json::array& entries = root.at("choices").at(0).at("prompt_logprobs").as_array();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[0].is_null());
  const json::object& second = entries[1].as_object();
  EXPECT_EQ(second.size(), 3u) << "the token, and the top three, of which it is one";
  EXPECT_EQ(second.at("11").at("rank").as_int64(), 2);
  EXPECT_EQ(second.at("2000").at("rank").as_int64(), 1);
  EXPECT_TRUE(second.at("11").at("decoded_token").is_string());
}

TEST(CompletionsLargeTest, LargePromptLogprobsAreFetched) {
  HarnessOptions options;
  options.engine.large_result_over = 10;
  RouterHarness harness(options);
  std::string ids = "1";
  for (int i = 2; i <= 100; ++i) StrAppend(&ids, ",", i);
  const HttpAnswer answer = harness.Complete(StrCat(
      R"({"model":"smol","max_tokens":3,"seed":1,"prompt_logprobs":1,"prompt":[)", ids, "]}"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value root = ParseOrFail(answer.body);
  EXPECT_EQ(root.at("choices").at(0).at("prompt_logprobs").as_array().size(), 100u);
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 3);
}

TEST(CompletionsLargeTest, ALostLargeResultIsAClearError) {
  HarnessOptions options;
  options.engine.large_result_over = 1;
  RouterHarness harness(options);
  harness.engine().SetLargeResultsLost(true);
  const HttpAnswer answer =
      harness.Complete(R"({"model":"smol","prompt":[1,2,3,4],"max_tokens":1,"prompt_logprobs":1})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
}

TEST_F(CompletionsHttpTest, ALargeBodyIsParsedOffTheIoThread) {
  const HttpAnswer answer =
      harness_.Complete(StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":2,"user":")",
                               std::string(200'000, 'u'), "\"}"));
  EXPECT_EQ(TextOf(answer), Expected());
}

}  // namespace
}  // namespace flotilla
