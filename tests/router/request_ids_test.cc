// A request's id from the client to the replica and back, and the count of unsent bytes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

using testing::MatchesRegex;

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":2,"seed":1})";
constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":2,"seed":1,"stream":true})";
constexpr const char* kMade = "req_[0-9a-f]{32}";

HttpAnswer PostWithId(RouterHarness& harness, std::string_view body, const std::string& id) {
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", body, "X-Request-Id: " + id + "\r\n"));
  return connection.Read();
}

TEST(RequestIdsTest, AClientsOwnGoesToTheReplicaAndBack) {
  RouterHarness harness;
  size_t count = 0;
  for (const char* body : {kBody, kStream}) {
    EXPECT_EQ(PostWithId(harness, body, "client-1").headers["x-request-id"], "client-1");
    EXPECT_EQ(harness.engine().submits()[count++].request().request_id(), "client-1");
  }
}

TEST(RequestIdsTest, ErrorsHaveItToo) {
  RouterHarness harness;
  const HttpAnswer answer = PostWithId(harness, "{", "client-2");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.headers.at("x-request-id"), "client-2");
  for (const HttpAnswer& other : {Get(harness.port(), "/nowhere"), Get(harness.port(), "/version")})
    EXPECT_THAT(other.headers.at("x-request-id"), MatchesRegex(kMade));
  HttpConnection broken(harness.port());
  broken.Send("no http\r\n\r\n");
  EXPECT_THAT(broken.Read().headers.at("x-request-id"), MatchesRegex(kMade));
}

TEST(RequestIdsTest, WhatIsNoIdIsPassedOver) {
  RouterHarness harness;
  for (const std::string& id : {std::string(129, 'x'), std::string("a b"), std::string("a\"b"),
                                std::string("\xC3\xA9"), std::string()}) {
    const HttpAnswer answer = PostWithId(harness, kBody, id);
    EXPECT_EQ(answer.status, 200) << id;
    EXPECT_THAT(answer.headers.at("x-request-id"), MatchesRegex(kMade)) << id;
  }
}

TEST(RequestIdsTest, EachRequestOfAConnectionHasItsOwn) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", kBody, "X-Request-Id: one\r\n"));
  EXPECT_EQ(connection.Read().headers.at("x-request-id"), "one");
  connection.Send(PostText("/v1/completions", kBody));
  EXPECT_THAT(connection.Read().headers.at("x-request-id"), MatchesRegex(kMade));
}

// It is a name in logs: nobody gets, ends or replaces another's request by it.
TEST(RequestIdsTest, TwoRequestsOfOneIdAreTwo) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection first(harness.port()), second(harness.port());
  first.Send(PostText("/v1/completions", kBody, "X-Request-Id: same\r\n"));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  second.Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hi","max_tokens":9})",
                       "X-Request-Id: same\r\n"));
  ASSERT_TRUE(harness.engine().WaitForSubmits(2));
  const std::vector<v1::Submit> submits = harness.engine().submits();
  EXPECT_NE(submits[0].stream_id(), submits[1].stream_id());
  second.Close();
  ASSERT_TRUE(harness.engine().WaitForAborts(1));
  harness.engine().RunFreely();
  const HttpAnswer answer = first.Read();
  EXPECT_EQ(TextOf(answer), GetTestModel().tokenizer->Decode(
                                harness.engine().AnswerIds(submits[0].request()), true));
}

class GrpcIdsTest : public testing::Test {
 protected:
  struct Outcome {
    grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
    std::string metadata_id;
    std::string message_id;
  };
  Outcome Generate(const std::string& field, const std::string& metadata,
                   const std::string& model = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!metadata.empty()) context.AddMetadata("x-request-id", metadata);
    v1::GenerateRequest request;
    request.set_text("Hi");
    request.set_model(model);
    request.mutable_stopping()->set_max_tokens(2);
    request.set_request_id(field);
    auto reader = stub_->Generate(&context, request);
    Outcome outcome;
    v1::GenerateResponse message;
    while (reader->Read(&message)) outcome.message_id = message.request_id();
    outcome.code = reader->Finish().error_code();
    const auto& told = context.GetServerInitialMetadata();
    const auto found = told.find("x-request-id");
    if (found != told.end()) outcome.metadata_id.assign(found->second.data(), found->second.size());
    return outcome;
  }

  RouterHarness harness_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness_.app().grpc_port()), grpc::InsecureChannelCredentials()));
};

TEST_F(GrpcIdsTest, FieldThenMetadataThenOneOfOurs) {
  Outcome outcome = Generate("field-1", "metadata-1");
  EXPECT_EQ(outcome.code, grpc::StatusCode::OK);
  EXPECT_EQ(outcome.metadata_id, "field-1");
  EXPECT_EQ(outcome.message_id, "field-1");
  outcome = Generate("", "metadata-2");
  EXPECT_EQ(outcome.metadata_id, "metadata-2");
  EXPECT_EQ(outcome.message_id, "metadata-2");
  EXPECT_EQ(harness_.engine().submits()[1].request().request_id(), "metadata-2");
  outcome = Generate("", "not an id");
  EXPECT_THAT(outcome.metadata_id, MatchesRegex(kMade));
  EXPECT_EQ(outcome.message_id, outcome.metadata_id);
}

TEST_F(GrpcIdsTest, ErrorsHaveItAndAFieldThatIsNoneIsRefused) {
  Outcome outcome = Generate("field-1", "", "unknown-model");
  EXPECT_EQ(outcome.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(outcome.metadata_id, "field-1");
  outcome = Generate("a\nb", "");
  EXPECT_EQ(outcome.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(outcome.metadata_id, "");
}

TEST_F(GrpcIdsTest, SmallCallsHaveOneToo) {
  grpc::ClientContext context, failing;
  context.AddMetadata("x-request-id", "mine");
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&context, {}, &models).ok());
  const auto told = context.GetServerInitialMetadata().find("x-request-id");
  ASSERT_NE(told, context.GetServerInitialMetadata().end());
  EXPECT_EQ(told->second, "mine");
  v1::TokenizeRequest request;
  request.set_model("unknown-model");
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&failing, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  const auto made = failing.GetServerInitialMetadata().find("x-request-id");
  ASSERT_NE(made, failing.GetServerInitialMetadata().end());
  EXPECT_THAT(std::string(made->second.data(), made->second.size()), MatchesRegex(kMade));
}

TEST_F(GrpcIdsTest, NothingIsUnsentAfterwards) {
  EXPECT_EQ(Generate("", "").code, grpc::StatusCode::OK);
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_stream_buffer_bytes", 0));
}

TEST(StreamBufferTest, GrowsWhileAClientDoesNotReadAndIsFreeWhenItLeaves) {
  HarnessOptions options;
  options.http.max_stream_buffer_bytes = 1 << 30;
  options.engine.max_model_len = 1'000'000;
  RouterHarness harness(options);
  HttpConnection slow(harness.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText("/v1/completions",
                     R"({"model":"smol","prompt":"Hi","max_tokens":60000,"stream":true})"));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (harness.Metric("flotilla_router_stream_buffer_bytes") == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
    std::this_thread::yield();
  }
  slow.Reset();
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_stream_buffer_bytes", 0));
}

}  // namespace
}  // namespace flotilla
