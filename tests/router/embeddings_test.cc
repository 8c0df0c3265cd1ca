// Embeddings through the router, over HTTP and gRPC.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <future>

#include "absl/strings/escaping.h"
#include "tests/router/router_harness.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

namespace json = boost::json;

class EmbeddingsTest : public testing::Test {
 protected:
  HttpAnswer Embed(std::string_view body) { return Post(harness_.port(), "/v1/embeddings", body); }
  json::value Json(std::string_view body) {
    const HttpAnswer answer = Embed(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body);
  }
  std::unique_ptr<v1::Inference::Stub> Stub() {
    return v1::Inference::NewStub(grpc::CreateChannel(
        StrCat("127.0.0.1:", harness_.app().grpc_port()), grpc::InsecureChannelCredentials()));
  }
  static std::vector<float> Floats(const json::value& array) {
    std::vector<float> out;
    for (const json::value& value : array.as_array()) out.push_back(value.to_number<float>());
    return out;
  }

  RouterHarness harness_;
};

TEST_F(EmbeddingsTest, EveryFormOfInput) {
  const std::vector<int32_t> ids = {5, 6, 7};
  const auto text_ids = *GetTestModel().tokenizer->Encode("Hello there");
  const std::vector<float> of_ids = FakeEngineService::Embedding(ids, false);
  const std::vector<float> of_text = FakeEngineService::Embedding(text_ids, false);
  struct Case {
    const char* input;
    std::vector<std::vector<float>> expected;
    int64_t tokens;
  };
  const Case cases[] = {
      {R"("Hello there")", {of_text}, 2},
      {R"(["Hello there","Hello there"])", {of_text, of_text}, 4},
      {"[5,6,7]", {of_ids}, 3},
      {"[[5,6,7],[5,6,7]]", {of_ids, of_ids}, 6},
  };
  for (const Case& c : cases) {
    const json::value root = Json(StrCat(R"({"model":"smol","input":)", c.input, "}"));
    EXPECT_EQ(root.at("object"), "list");
    EXPECT_EQ(root.at("model"), "smol");
    ASSERT_EQ(root.at("data").as_array().size(), c.expected.size());
    for (size_t i = 0; i < c.expected.size(); ++i) {
      const json::value& entry = root.at("data").at(i);
      EXPECT_EQ(entry.at("object"), "embedding");
      EXPECT_EQ(entry.at("index").as_int64(), static_cast<int64_t>(i));
      EXPECT_EQ(Floats(entry.at("embedding")), c.expected[i]) << c.input;
    }
    EXPECT_EQ(root.at("usage").at("prompt_tokens").as_int64(), c.tokens);
    EXPECT_EQ(root.at("usage").at("total_tokens").as_int64(), c.tokens);
  }
}

TEST_F(EmbeddingsTest, Base64IsTheFloatsBytes) {
  const json::value root =
      Json(R"({"model":"smol","input":[5,6,7],"encoding_format":"base64","dimensions":3,
               "user":"me"})");
  std::string bytes;
  const std::string text(root.at("data").at(0).at("embedding").as_string());
  ASSERT_TRUE(absl::Base64Unescape(text, &bytes));
  const std::vector<int32_t> ids = {5, 6, 7};
  const std::vector<float> expected = FakeEngineService::Embedding(ids, false);
  ASSERT_EQ(bytes.size(), expected.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
}

TEST_F(EmbeddingsTest, SubmitsWhatTheClientAskedFor) {
  Json(R"({"model":"smol","input":[5],"pooling":"mean","normalize":false,"priority":3})");
  Json(R"({"model":"smol","input":[5]})");
  const auto submits = harness_.engine().submits();
  EXPECT_EQ(submits[0].embed().pooling(), v1::EmbedRequest::POOLING_MEAN);
  EXPECT_FALSE(submits[0].embed().normalize());
  EXPECT_EQ(submits[0].request().priority(), 3);
  EXPECT_FALSE(submits[0].request().has_sampling());
  EXPECT_FALSE(submits[0].request().has_output());
  EXPECT_EQ(submits[1].embed().pooling(), v1::EmbedRequest::POOLING_LAST);
  EXPECT_TRUE(submits[1].embed().normalize());
}

TEST_F(EmbeddingsTest, BadFieldsAreNamed) {
  struct Case {
    const char* fields;
    const char* param;
  };
  const Case cases[] = {
      {R"("user":"me")", "input"},
      {R"("input":5)", "input"},
      {R"("input":[])", "input"},
      {R"("input":"")", "input"},
      {R"("input":[[]])", "input"},
      {R"("input":[-1])", "input"},
      {R"("input":["a",5])", "input"},
      {R"("input":"a","encoding_format":"hex")", "encoding_format"},
      {R"("input":"a","dimensions":2)", "dimensions"},
      {R"("input":"a","pooling":"cls")", "pooling"},
      {R"("input":"a","normalize":1)", "normalize"},
      {R"("input":"a","user":1)", "user"},
      {R"("input":"a","priority":101)", "priority"},
      {R"("input":"a","truncate_prompt_tokens":5)", "truncate_prompt_tokens"},
      {R"("input":"a","cache_salt":"mine")", "cache_salt"},
  };
  for (const Case& c : cases) {
    const HttpAnswer answer = Embed(StrCat(R"({"model":"smol",)", c.fields, "}"));
    EXPECT_EQ(answer.status, 400) << c.fields << answer.body;
    EXPECT_EQ(ErrorField(answer, "param"), c.param) << c.fields << answer.body;
  }
  std::string ids = "1";
  for (int i = 0; i < 2048; ++i) ids += ",1";
  const HttpAnswer answer = Embed(StrCat(R"({"model":"smol","input":[)", ids, "]}"));
  EXPECT_EQ(ErrorField(answer, "param"), "input") << "a token more than the context";
  EXPECT_TRUE(harness_.engine().submits().empty());
}

// LangChain's clients send a thousand texts at a time.
TEST_F(EmbeddingsTest, LaterInputsWaitForTheFirstOnes) {
  constexpr int kInputs = 700, kInFlight = 512;
  std::string inputs;
  for (int i = 0; i < kInputs; ++i) inputs += StrCat(i > 0 ? "," : "", "[", i + 1, "]");
  harness_.engine().Hold();
  auto answer = std::async(std::launch::async, [&] {
    return Embed(StrCat(R"({"model":"smol","input":[)", inputs, "]}"));
  });
  ASSERT_TRUE(harness_.engine().WaitForSubmits(kInFlight));
  EXPECT_EQ(harness_.engine().submits().size(), size_t{kInFlight});
  harness_.engine().RunFreely();
  const json::value root = ParseOrFail(answer.get().body);
  const json::array& data = root.at("data").as_array();
  ASSERT_EQ(data.size(), size_t{kInputs});
  for (int i = 0; i < kInputs; ++i) {
    const std::vector<int32_t> ids = {i + 1};
    EXPECT_EQ(Floats(data[static_cast<size_t>(i)].at("embedding")),
              FakeEngineService::Embedding(ids, false));
  }
  inputs.clear();
  for (int i = 0; i <= 2048; ++i) inputs += StrCat(i > 0 ? "," : "", "[1]");
  const HttpAnswer refused = Embed(StrCat(R"({"model":"smol","input":[)", inputs, "]}"));
  EXPECT_EQ(ErrorField(refused, "message"), "'input' may have at most 2048 entries, not 2049.");
}

// Those that wait for others have less of it.
TEST_F(EmbeddingsTest, ADeadlineIsThatOfAllInputs) {
  constexpr int kInputs = 513, kInFlight = 512;
  constexpr int64_t kWaitMs = 5;
  std::string inputs = "[1]";
  for (int i = 1; i < kInputs; ++i) inputs += ",[1]";
  harness_.engine().Hold();
  HttpConnection connection(harness_.port());
  connection.Send(PostText("/v1/embeddings", StrCat(R"({"model":"smol","input":[)", inputs, "]}"),
                           "X-Request-Timeout-Ms: 60000\r\n"));
  ASSERT_TRUE(harness_.engine().WaitForSubmits(kInFlight));
  for (const int64_t end = RealClock::Now() + kWaitMs * kNsPerMs; RealClock::Now() < end;) {
  }
  harness_.engine().RunFreely();
  ASSERT_TRUE(harness_.engine().WaitForSubmits(kInputs));
  const auto submits = harness_.engine().submits();
  EXPECT_LE(submits.front().request().deadline_ms(), 60000);
  EXPECT_LE(submits.back().request().deadline_ms(),
            submits.front().request().deadline_ms() - kWaitMs);
}

TEST_F(EmbeddingsTest, AClientThatLeavesEndsAll) {
  harness_.engine().Hold();
  {
    HttpConnection connection(harness_.port());
    connection.Send(PostText("/v1/embeddings", R"({"model":"smol","input":["a","b","c"]})"));
    ASSERT_TRUE(harness_.engine().WaitForSubmits(3));
  }
  EXPECT_TRUE(harness_.engine().WaitForAborts(3));
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_requests_in_flight", 0));
}

TEST(EmbeddingsRetryTest, ALostInputIsEmbeddedByAnotherReplica) {
  HarnessOptions options;
  options.replicas = 2;
  RouterHarness harness(std::move(options));
  harness.engine(0).Hold();
  auto answer = std::async(std::launch::async, [&] {
    return Post(harness.port(), "/v1/embeddings",
                R"({"model":"smol","input":[5,6,7],"pooling":"mean"})");
  });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.engine(0).Stop();
  const HttpAnswer got = answer.get();
  EXPECT_EQ(got.status, 200) << got.body;
  ASSERT_EQ(harness.engine(1).submits().size(), 1u);
  EXPECT_EQ(harness.engine(1).submits()[0].embed().SerializeAsString(),
            harness.engine(0).submits()[0].embed().SerializeAsString());
  EXPECT_EQ(harness.engine(1).submits()[0].embed().pooling(), v1::EmbedRequest::POOLING_MEAN);
  harness.engine(0).Start();
}

TEST_F(EmbeddingsTest, AnAbortIsAnError) {
  harness_.engine().Hold();
  auto answer = std::async(std::launch::async,
                           [&] { return Embed(R"({"model":"smol","input":["a","b"]})"); });
  ASSERT_TRUE(harness_.engine().WaitForSubmits(2));
  v1::AbortRequest abort;
  abort.set_request_id(harness_.engine().submits()[0].request().request_id());
  v1::AbortResponse found;
  grpc::ClientContext context;
  ASSERT_TRUE(Stub()->Abort(&context, abort, &found).ok());
  EXPECT_TRUE(found.found());
  EXPECT_EQ(answer.get().status, 499);
}

TEST_F(EmbeddingsTest, OverGrpc) {
  const auto stub = Stub();
  v1::EmbedRequest request;
  request.set_text("Hello there");
  request.set_pooling(v1::EmbedRequest::POOLING_MEAN);
  request.set_request_id("mine");
  v1::EmbedResponse response;
  grpc::ClientContext context, bad_context, cancelled_context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  ASSERT_TRUE(stub->Embed(&context, request, &response).ok());
  const auto ids = *GetTestModel().tokenizer->Encode("Hello there");
  EXPECT_EQ(std::vector<float>(response.embedding().begin(), response.embedding().end()),
            FakeEngineService::Embedding(ids, true));
  EXPECT_EQ(response.usage().prompt_tokens(), 2);
  EXPECT_EQ(response.request_id(), "mine");
  EXPECT_EQ(response.model(), "smol");
  request.mutable_token_ids()->add_ids(-1);
  const grpc::Status bad = stub->Embed(&bad_context, request, &response);
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(bad.error_message().find("token_ids"), std::string::npos);

  harness_.engine().Hold();
  request.set_text("Hello there");
  auto cancelled = std::async(std::launch::async, [&] {
    return stub->Embed(&cancelled_context, request, &response).error_code();
  });
  EXPECT_TRUE(harness_.engine().WaitForSubmits(2));
  cancelled_context.TryCancel();
  EXPECT_EQ(cancelled.get(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(harness_.engine().WaitForAborts(1));
}

}  // namespace
}  // namespace flotilla
