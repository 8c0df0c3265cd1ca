// /tokenize, /detokenize and /apply-template over HTTP; the limits also of gRPC's.
#include "router/api/text_requests.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;

class TextRequestsTest : public testing::Test {
 protected:
  explicit TextRequestsTest(const HarnessOptions& options = {}) : harness_(options) {}

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

TEST_F(TextRequestsTest, TakesLlamaCppsContent) {
  const HttpAnswer ours =
      Post(harness_.port(), "/tokenize", R"({"prompt":"Hi you","add_special_tokens":false})");
  const HttpAnswer theirs = Post(harness_.port(), "/tokenize", R"({"content":"Hi you"})");
  EXPECT_EQ(theirs.status, 200);
  EXPECT_EQ(theirs.body, ours.body);
}

TEST_F(TextRequestsTest, TheOnlyModelNeedNotBeNamed) {
  EXPECT_EQ(Post(harness_.port(), "/tokenize", R"({"prompt":"Hi"})").status, 200);
  EXPECT_EQ(Post(harness_.port(), "/detokenize", R"({"tokens":[5],"model":null})").status, 200);
  EXPECT_EQ(Post(harness_.port(), "/apply-template", StrCat("{", kMessages, "}")).status, 200);
  const HttpAnswer empty = Post(harness_.port(), "/tokenize", R"({"prompt":"Hi","model":""})");
  EXPECT_EQ(empty.status, 400);
  EXPECT_EQ(ErrorField(empty, "param"), "model");
}

TEST(TextRequestsOfSeveralTest, TheModelMustBeNamed) {
  HarnessOptions options;
  options.replicas = 2;
  options.models = {"smol", "large"};
  RouterHarness harness(options);
  harness.WaitAllReady();
  for (const char* path : {"/tokenize", "/detokenize", "/apply-template", "/v1/completions",
                           "/v1/chat/completions", "/v1/embeddings", "/v1/responses"}) {
    const HttpAnswer answer = Post(harness.port(), path, R"({"prompt":"Hi"})");
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(ErrorField(answer, "param"), "model");
    EXPECT_EQ(ErrorField(answer, "message"), "'model' is missing, and there are 'large', 'smol'.");
  }
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

class TextLimitsTest : public TextRequestsTest {
 protected:
  static constexpr uint32_t kContext = 64;

  static HarnessOptions Options() {
    HarnessOptions options;
    options.engine.max_model_len = kContext;
    return options;
  }
  TextLimitsTest()
      : TextRequestsTest(Options()),
        stub_(v1::Inference::NewStub(
            grpc::CreateChannel(StrCat("127.0.0.1:", harness_.app().grpc_port()),
                                grpc::InsecureChannelCredentials()))) {}

  // docs/limits.md
  static size_t MostBytes() {
    const Tokenizer& tokenizer = *GetTestModel().tokenizer;
    size_t longest = 0;
    for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id)
      longest = std::max(longest, tokenizer.TokenBytes(id).size());
    return 4 * longest * kContext;
  }
  static std::string User(size_t bytes) {
    return StrCat(R"("messages":[{"role":"user","content":")", std::string(bytes, 'a'), R"("}])");
  }
  template <typename Method, typename Request, typename Response>
  void ExpectRefused(Method method, const Request& request, Response* response,
                     const std::string& field) {
    grpc::ClientContext context;
    const grpc::Status status = (stub_.get()->*method)(&context, request, response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find(StrCat("'", field, "'")), std::string::npos)
        << status.error_message();
  }

  const std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(TextLimitsTest, HttpRefusesWhatNoContextHolds) {
  const std::string most(MostBytes(), 'a');
  Ask("/tokenize", StrCat(R"("prompt":")", most, R"(")"));
  EXPECT_EQ(Refused("/tokenize", StrCat(R"("prompt":")", most, R"(a")")), "prompt");
  EXPECT_EQ(Refused("/tokenize", User(MostBytes())), "messages");
  EXPECT_EQ(Refused("/apply-template", User(MostBytes())), "messages");
  EXPECT_EQ(Post(harness_.port(), "/v1/messages/count_tokens",
                 StrCat(R"({"model":"smol","max_tokens":1,)", User(MostBytes()), "}"))
                .status,
            400);
  std::string ids = "1";
  for (uint32_t i = 1; i < kContext; ++i) ids += ",1";
  Ask("/detokenize", StrCat(R"("tokens":[)", ids, "]"));
  EXPECT_EQ(Refused("/detokenize", StrCat(R"("tokens":[)", ids, ",1]")), "tokens");
}

TEST_F(TextLimitsTest, GrpcRefusesWhatNoContextHolds) {
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse tokens;
  tokenize.set_text(std::string(MostBytes(), 'a'));
  grpc::ClientContext fits;
  EXPECT_TRUE(stub_->Tokenize(&fits, tokenize, &tokens).ok());
  tokenize.mutable_text()->push_back('a');
  ExpectRefused(&v1::Inference::Stub::Tokenize, tokenize, &tokens, "text");

  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  for (uint32_t i = 0; i < kContext; ++i) detokenize.add_token_ids(1);
  grpc::ClientContext also_fits;
  EXPECT_TRUE(stub_->Detokenize(&also_fits, detokenize, &text).ok());
  detokenize.add_token_ids(1);
  ExpectRefused(&v1::Inference::Stub::Detokenize, detokenize, &text, "token_ids");

  v1::ChatRequest chat;
  v1::ApplyTemplateResponse rendered;
  v1::ChatMessage* message = chat.add_messages();
  message->set_role("user");
  message->set_content(std::string(MostBytes(), 'a'));
  ExpectRefused(&v1::Inference::Stub::ApplyTemplate, chat, &rendered, "messages");
}

}  // namespace
}  // namespace flotilla
