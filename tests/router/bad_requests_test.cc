// Every field's bad values: each gets its status, names the field, and leaves the router well.
#include <gtest/gtest.h>

#include "router/http/http_message.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

class BadRequestsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { harness_ = new RouterHarness(); }
  static void TearDownTestSuite() {
    delete harness_;
    harness_ = nullptr;
  }
  static HttpAnswer With(const std::string& fields) {
    return harness_->Complete(R"({"model":"smol","prompt":"Hi","max_tokens":1,)" + fields + "}");
  }
  static RouterHarness* harness_;
};
RouterHarness* BadRequestsTest::harness_ = nullptr;

struct Case {
  const char* fields;  // JSON members, added to a good request without its max_tokens or prompt
  const char* param;
  int status = 400;
  const char* code = "null";
};

const Case kCases[] = {
    {R"("max_tokens":0)", "max_tokens"},
    {R"("max_tokens":-1)", "max_tokens"},
    {R"("max_tokens":"5")", "max_tokens"},
    {R"("max_tokens":1.5)", "max_tokens"},
    {R"("max_tokens":true)", "max_tokens"},
    {R"("max_tokens":[1])", "max_tokens"},
    {R"("max_tokens":1e30)", "max_tokens"},
    {R"("max_tokens":99999999999999999999)", "max_tokens"},
    {R"("max_tokens":4000)", "max_tokens", 400, "context_length_exceeded"},
    {R"("temperature":-0.1)", "temperature"},
    {R"("temperature":2.1)", "temperature"},
    {R"("temperature":"hot")", "temperature"},
    {R"("temperature":1e308)", "temperature"},
    {R"("temperature":true)", "temperature"},
    {R"("top_p":0)", "top_p"},
    {R"("top_p":1.01)", "top_p"},
    {R"("top_p":"x")", "top_p"},
    {R"("top_k":-2)", "top_k"},
    {R"("top_k":1000000)", "top_k"},
    {R"("top_k":0.5)", "top_k"},
    {R"("min_p":-1)", "min_p"},
    {R"("min_p":1.5)", "min_p"},
    {R"("seed":"1")", "seed"},
    {R"("seed":1.5)", "seed"},
    {R"("stream":"yes")", "stream"},
    {R"("stream":1)", "stream"},
    {R"("stream_options":{"include_usage":true})", "stream_options"},
    {R"("stream":true,"stream_options":[])", "stream_options"},
    {R"("stream":true,"stream_options":{"include_usage":3})", "stream_options.include_usage"},
    {R"("stream":true,"stream_options":{"continuous_usage_stats":3})",
     "stream_options.continuous_usage_stats"},
    {R"("stop":5)", "stop"},
    {R"("stop":"")", "stop"},
    {R"("stop":["a",1])", "stop"},
    {R"("stop":[""])", "stop"},
    {R"("stop":{"a":1})", "stop"},
    {R"("logprobs":-1)", "logprobs"},
    {R"("logprobs":21)", "logprobs"},
    {R"("logprobs":true)", "logprobs"},
    {R"("prompt_logprobs":-1)", "prompt_logprobs"},
    {R"("prompt_logprobs":21)", "prompt_logprobs"},
    {R"("stream":true,"prompt_logprobs":1)", "prompt_logprobs"},
    {R"("echo":"true")", "echo"},
    {R"("min_tokens":-1)", "min_tokens"},
    {R"("min_tokens":100)", "min_tokens"},
    {R"("stop_token_ids":5)", "stop_token_ids"},
    {R"("stop_token_ids":[-1])", "stop_token_ids"},
    {R"("stop_token_ids":[999999])", "stop_token_ids"},
    {R"("stop_token_ids":["a"])", "stop_token_ids"},
    {R"("ignore_eos":0)", "ignore_eos"},
    {R"("include_stop_str_in_output":"x")", "include_stop_str_in_output"},
    {R"("skip_special_tokens":"x")", "skip_special_tokens"},
    {R"("add_special_tokens":1)", "add_special_tokens"},
    {R"("return_token_ids":1)", "return_token_ids"},
    {R"("return_tokens_as_token_ids":1)", "return_tokens_as_token_ids"},
    {R"("user":5)", "user"},
    {R"("priority":101)", "priority"},
    {R"("n":0)", "n"},
    {R"("n":17)", "n"},
    {R"("n":"1")", "n"},
    {R"("best_of":0)", "best_of"},
    {R"("best_of":17)", "best_of"},
    {R"("n":3,"best_of":2)", "best_of"},
    {R"("best_of":2,"stream":true)", "best_of"},
    {R"("presence_penalty":3)", "presence_penalty"},
    {R"("frequency_penalty":-3)", "frequency_penalty"},
    {R"("presence_penalty":"1")", "presence_penalty"},
    {R"("repetition_penalty":0)", "repetition_penalty"},
    {R"("repetition_penalty":2.5)", "repetition_penalty"},
    {R"("logit_bias":[5])", "logit_bias"},
    {R"("logit_bias":{"five":1})", "logit_bias"},
    {R"("logit_bias":{"5 ":1})", "logit_bias"},
    {R"("logit_bias":{"":1})", "logit_bias"},
    {R"("logit_bias":{"1.5":1})", "logit_bias"},
    {R"("logit_bias":{"99999999999":1})", "logit_bias"},
    {R"("logit_bias":{"-1":1})", "logit_bias"},
    {R"("logit_bias":{"999999":1})", "logit_bias"},
    {R"("logit_bias":{"5":"1"})", "logit_bias"},
    {R"("logit_bias":{"5":100.1})", "logit_bias"},
    {R"("logit_bias":{"5":-101})", "logit_bias"},
    {R"("logit_bias":{"5":1,"05":2})", "logit_bias"},
    {R"("response_format":"json")", "response_format"},
    {R"("response_format":{})", "response_format.type"},
    {R"("response_format":{"type":"xml"})", "response_format.type"},
    {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
     "response_format.json_schema.schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{"schema":3}})",
     "response_format.json_schema.schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})",
     "response_format.json_schema.strict"},
    {R"("structured_outputs":"a+")", "structured_outputs"},
    {R"("structured_outputs":{"regex":5})", "structured_outputs.regex"},
    {R"("structured_outputs":{"choice":["a",5]})", "structured_outputs.choice"},
    {R"("structured_outputs":{"choice":"a"})", "structured_outputs.choice"},
    {R"("structured_outputs":{"grammar":{}})", "structured_outputs.grammar"},
    {R"("structured_outputs":{"json_object":1})", "structured_outputs.json_object"},
    {R"("structured_outputs":{"json":5})", "structured_outputs.json"},
    {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice"},
    {R"("guided_regex":"a","response_format":{"type":"json_object"})", "guided_regex"},
    {R"("guided_json":[])", "guided_json"},
    {R"("structured_outputs":{})", "structured_outputs"},
    {R"("structured_outputs":{"josn":{"type":"null"}})", "structured_outputs.josn"},
    {R"("regex":"a","guided_json":{})", "regex"},
    // What a later part builds says so.
    {R"("cache_salt":"mine")", "cache_salt", 400, "unsupported_parameter"},
    {R"("length_penalty":1.5)", "length_penalty", 400, "unsupported_parameter"},
    {R"("typical_p":0.5)", "typical_p", 400, "unsupported_parameter"},
    {R"("top_n_sigma":1)", "top_n_sigma", 400, "unsupported_parameter"},
    {R"("mirostat":2)", "mirostat", 400, "unsupported_parameter"},
    {R"("samplers":["top_k"])", "samplers", 400, "unsupported_parameter"},
    {R"("stop_regex":"a+")", "stop_regex", 400, "unsupported_parameter"},
    {R"("truncate_prompt_tokens":-1)", "truncate_prompt_tokens", 400, "unsupported_parameter"},
    {R"("suffix":"end")", "suffix", 400, "unsupported_parameter"},
    {R"("use_beam_search":true)", "use_beam_search", 400, "unsupported_parameter"},
};

TEST_F(BadRequestsTest, EveryFieldIsNamed) {
  for (const Case& c : kCases) {
    const std::string base = R"({"model":"smol","prompt":"Hi",)";
    const HttpAnswer answer = harness_->Complete(base + c.fields + "}");
    EXPECT_EQ(answer.status, c.status) << c.fields << answer.body;
    EXPECT_EQ(ErrorField(answer, "param"), c.param) << c.fields << answer.body;
    EXPECT_EQ(ErrorField(answer, "type"), "invalid_request_error");
    EXPECT_EQ(ErrorField(answer, "code"), c.code) << c.fields << answer.body;
    EXPECT_NE(ErrorField(answer, "message").find(c.param), std::string::npos) << answer.body;
  }
  EXPECT_TRUE(harness_->engine().submits().empty()) << "nothing bad reaches a replica";
}

TEST_F(BadRequestsTest, EachFormSaysHowItsLogprobsAreAsked) {
  EXPECT_EQ(ErrorField(With(R"("logprobs":true)"), "message"),
            "'logprobs' must be how many, an integer from 0 to 20: a boolean is chat's.");
  EXPECT_EQ(ErrorField(Post(harness_->port(), "/v1/chat/completions",
                            R"({"model":"smol","messages":[],"logprobs":5})"),
                       "message"),
            "'logprobs' must be true or false: 'top_logprobs' says how many.");
}

TEST_F(BadRequestsTest, NeutralValuesAndUnknownFieldsPass) {
  for (
      const char* fields :
      {R"("n":1,"best_of":1,"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1)",
       R"("suffix":null,"logit_bias":{},"logit_bias2":{"a":[1]},"user":"me")",
       R"("response_format":{"type":"text"},"structured_outputs":{"json":null},"stop":[],"stop_token_ids":[],"seed":null)",
       R"("temperature":null,"stream":false,"stream_options":null,"echo":false,"top_k":-1)",
       R"("length_penalty":1.0,"cache_salt":"","regex":null)",
       R"("typical_p":1.0,"top_n_sigma":-1,"tfs_z":1,"mirostat":0,"dry_multiplier":0.0,"lora":[])",
       R"("unknown":{"deep":[1,2,{"x":null}]},"guided_json":null,"use_beam_search":false)"}) {
    EXPECT_EQ(With(fields).status, 200) << fields;
  }
}

TEST_F(BadRequestsTest, Prompts) {
  for (const char* prompt :
       {"null", "5", "true", "{}", "[]", "\"\"", "[\"a\",5]", "[5,\"a\"]", "[[1],\"a\"]", "[[]]",
        "[[1],[]]", "[1.5]", "[-1]", "[49152]", "[99999999999]", "[null]", "[[[1]]]", "[true]"}) {
    const HttpAnswer answer =
        harness_->Complete(StrCat(R"({"model":"smol","prompt":)", prompt, "}"));
    EXPECT_EQ(answer.status, 400) << prompt << answer.body;
    EXPECT_EQ(ErrorField(answer, "param"), "prompt") << prompt;
  }
  const HttpAnswer missing = harness_->Complete(R"({"model":"smol"})");
  EXPECT_EQ(missing.status, 400);
  EXPECT_EQ(ErrorField(missing, "param"), "prompt");
}

// Each choice would take it to its replica.
TEST_F(BadRequestsTest, TextsOfGrammarsThatNoReplicaTakes) {
  const size_t submits = harness_->engine().submits().size();
  const std::string text(ModelHandle().max_grammar_bytes + 1, 'x');
  for (const char* field : {"guided_json", "guided_regex", "guided_grammar"}) {
    const HttpAnswer answer = harness_->Complete(
        StrCat(R"({"model":"smol","prompt":"Hi","n":4,")", field, R"(":")", text, R"("})"));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(ErrorField(answer, "param"), field);
    EXPECT_NE(ErrorField(answer, "message").find("1048577 bytes, and at most 1048576"),
              std::string::npos)
        << answer.body;
  }
  EXPECT_EQ(harness_->engine().submits().size(), submits);
}

TEST_F(BadRequestsTest, TooManyPrompts) {
  std::string prompts = "\"a\"";
  for (int i = 0; i < 128; ++i) prompts += ",\"a\"";
  const HttpAnswer answer =
      harness_->Complete(StrCat(R"({"model":"smol","prompt":[)", prompts, "]}"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(ErrorField(answer, "message").find("129"), std::string::npos);
}

TEST_F(BadRequestsTest, TheContextsLimitNamesBothNumbers) {
  const HttpAnswer answer =
      harness_->Complete(R"({"model":"smol","prompt":[1,2,3],"max_tokens":2046})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(ErrorField(answer, "param"), "max_tokens");
  const std::string message = ErrorField(answer, "message");
  EXPECT_EQ(message,
            "This model's maximum context length is 2048 tokens; the prompt's 3 and 'max_tokens' "
            "2046 are 2049 together.");
  EXPECT_EQ(ErrorField(answer, "code"), "context_length_exceeded");
  EXPECT_EQ(harness_->Complete(R"({"model":"smol","prompt":[1,2,3],"max_tokens":2045})").status,
            200);

  std::string ids = "1";
  for (int i = 0; i < 2047; ++i) ids += ",1";
  const HttpAnswer full = harness_->Complete(StrCat(R"({"model":"smol","prompt":[)", ids, "]}"));
  EXPECT_EQ(full.status, 400);
  EXPECT_EQ(ErrorField(full, "param"), "prompt");
  EXPECT_EQ(
      ErrorField(full, "message"),
      "This model's maximum context length is 2048 tokens; 'prompt' has 2048, which leaves no "
      "room for an answer.");
  EXPECT_EQ(ErrorField(full, "code"), "context_length_exceeded");
}

TEST_F(BadRequestsTest, Models) {
  const HttpAnswer unknown = harness_->Complete(R"({"model":"gpt-9","prompt":"Hi"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorField(unknown, "code"), "model_not_found");
  EXPECT_EQ(ErrorField(unknown, "param"), "model");
  for (const char* body : {R"({"model":"","prompt":"Hi"})", R"({"model":5,"prompt":"Hi"})"}) {
    const HttpAnswer answer = harness_->Complete(body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(ErrorField(answer, "param"), "model") << body;
  }
}

TEST_F(BadRequestsTest, TheOnlyModelNeedNotBeNamed) {
  for (const char* body :
       {R"({"prompt":"Hi","max_tokens":1})", R"({"model":null,"prompt":"Hi","max_tokens":1})"}) {
    const HttpAnswer answer = harness_->Complete(body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(ParseOrFail(answer.body).at("model"), "smol");
  }
}

TEST_F(BadRequestsTest, Bodies) {
  for (const char* body : {"", "{", "[]", "5", "\"x\"", "null", "{\"model\":\"smol\",}",
                           "{\"model\":\"smol\",\"prompt\":\"\xff\"}",
                           "{\"model\":\"smol\",\"model\":\"smol\",\"prompt\":\"Hi\"}",
                           "{\"model\":\"smol\",\"prompt\":\"Hi\",\"temperature\":NaN}"}) {
    const HttpAnswer answer = harness_->Complete(body);
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    EXPECT_EQ(ErrorField(answer, "type"), "invalid_request_error") << body;
  }
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_EQ(harness_->Complete(deep).status, 400);
}

TEST_F(BadRequestsTest, AnErrorThatQuotesACutCharacterIsStillJson) {
  std::string name(127, 'x');
  const HttpAnswer answer =
      harness_->Complete(StrCat(R"({"model":")", name, "éé\",\"prompt\":\"Hi\"}"));
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(ErrorField(answer, "code"), "model_not_found");
  EXPECT_EQ(Get(harness_->port(), "/v1/models/%ff%fe").status, 404);
}

}  // namespace
}  // namespace flotilla
