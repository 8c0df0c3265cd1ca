// /tokenize, /detokenize and /apply-template over HTTP.
#include "router/text_requests.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;

class TextRequestsTest : public testing::Test {
 protected:
  json::value Ask(const char* path, std::string_view fields) {
    const HttpAnswer answer =
        Post(harness_.port(), path, StrCat(R"({"model":"smol",)", std::string(fields), "}"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body);
  }
  std::string Refused(const char* path, std::string_view fields) {
    const HttpAnswer answer =
        Post(harness_.port(), path, StrCat(R"({"model":"smol",)", std::string(fields), "}"));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return ErrorField(answer, "param");
  }

  RouterHarness harness_;
};

constexpr const char* kMessages =
    R"("messages":[{"role":"system","content":"S"},{"role":"user","content":"Hi"}])";
constexpr const char* kPrompt =
    "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";

TEST_F(TextRequestsTest, TextToTokensAndBack) {
  const json::value root = Ask("/tokenize", R"("prompt":"naïve 😀","return_token_strs":true)");
  const std::vector<TokenId> ids = *GetTestModel().tokenizer->Encode("naïve 😀");
  EXPECT_EQ(root.at("count").as_int64(), static_cast<int64_t>(ids.size()));
  EXPECT_EQ(root.at("max_model_len").as_int64(), 2048);
  EXPECT_EQ(json::value_to<std::vector<TokenId>>(root.at("tokens")), ids);
  EXPECT_EQ(root.at("token_strs").as_array().size(), ids.size());
  const json::value back =
      Ask("/detokenize", StrCat(R"("tokens":)", json::serialize(root.at("tokens"))));
  EXPECT_EQ(back.at("prompt"), "naïve 😀");
  EXPECT_TRUE(Ask("/tokenize", R"("prompt":"")").at("token_strs").is_null());
}

TEST_F(TextRequestsTest, AConversationIsWhatChatMakesOfIt) {
  EXPECT_EQ(Ask("/apply-template", kMessages).at("prompt"), kPrompt);
  const json::value tokens = Ask("/tokenize", kMessages);
  EXPECT_EQ(
      json::value_to<std::vector<TokenId>>(tokens.at("tokens")),
      *GetTestModel().tokenizer->Encode(kPrompt, {.parse_special = true, .add_special = false}));
}

TEST_F(TextRequestsTest, ErrorsNameTheField) {
  EXPECT_EQ(Refused("/tokenize", R"("x":1)"), "prompt");
  EXPECT_EQ(Refused("/tokenize", R"("prompt":7)"), "prompt");
  EXPECT_EQ(Refused("/tokenize", R"("messages":[])"), "messages");
  EXPECT_EQ(Refused("/detokenize", R"("x":1)"), "tokens");
  EXPECT_EQ(Refused("/detokenize", R"("tokens":["a"])"), "tokens");
  EXPECT_EQ(Refused("/detokenize", R"("tokens":[49152])"), "tokens");
  EXPECT_EQ(Refused("/apply-template", R"("x":1)"), "messages");
}

}  // namespace
}  // namespace flotilla
