// The router's gRPC: Generate as HTTP does it, the small calls, health, reflection, cancel.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>

#include "router/grpc/grpc_service.h"
#include "tests/router/router_harness.h"
#include "tests/support/health_client.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

struct Answer {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> ids;
  std::vector<v1::GenerateResponse> messages;
};

class GrpcTest : public testing::Test {
 protected:
  explicit GrpcTest(HarnessOptions options = {})
      : harness_(options),
        channel_(grpc::CreateChannel(StrCat("127.0.0.1:", harness_.app().grpc_port()),
                                     grpc::InsecureChannelCredentials())),
        stub_(v1::Inference::NewStub(channel_)) {}

  Answer Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    Answer answer;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      answer.messages.push_back(message);
      for (const v1::ChoiceDelta& choice : message.choices()) {
        answer.text += choice.text();
        answer.ids.insert(answer.ids.end(), choice.token_ids().begin(), choice.token_ids().end());
      }
    }
    answer.status = reader->Finish();
    return answer;
  }
  static v1::GenerateRequest Request(int max_tokens) {
    v1::GenerateRequest request;
    request.set_text("Hello there");
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_seed(5);
    return request;
  }

  RouterHarness harness_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcTest, GeneratesFromText) {
  v1::GenerateRequest request = Request(12);
  request.set_request_id("mine");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::vector<int32_t> ids =
      harness_.engine().AnswerIds(harness_.engine().submits()[0].request());
  EXPECT_EQ(answer.ids, ids);
  EXPECT_EQ(answer.text, GetTestModel().tokenizer->Decode(ids, true));
  EXPECT_EQ(answer.messages[0].request_id(), "mine");
  EXPECT_EQ(answer.messages[0].model(), "smol");
  EXPECT_EQ(answer.messages[0].prompt_token_ids_size(), 2);
  EXPECT_EQ(answer.messages.back().usage().completion_tokens(), 12);
  EXPECT_EQ(answer.messages.back().choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(GrpcTest, DefaultsAreTheContextsRestAndARandomSeed) {
  v1::GenerateRequest request;
  for (int i = 0; i < 2000; ++i) request.mutable_token_ids()->add_ids(7);
  EXPECT_TRUE(Generate(request).status.ok());
  const v1::GenerateRequest sent = harness_.engine().submits()[0].request();
  EXPECT_EQ(sent.stopping().max_tokens(), 48);
  EXPECT_TRUE(sent.sampling().has_seed());
  EXPECT_TRUE(sent.output().skip_special_tokens());
  EXPECT_FALSE(sent.request_id().empty());
}

TEST_F(GrpcTest, EchoAndWithoutIds) {
  v1::GenerateRequest request = Request(3);
  request.mutable_output()->set_echo(true);
  request.mutable_output()->set_return_token_ids(false);
  const Answer answer = Generate(request);
  EXPECT_TRUE(answer.text.starts_with("Hello there")) << answer.text;
  EXPECT_TRUE(answer.ids.empty());
  EXPECT_EQ(answer.messages[0].prompt_token_ids_size(), 0);
}

TEST_F(GrpcTest, BadFieldsAreNamed) {
  struct Case {
    void (*change)(v1::GenerateRequest*);
    grpc::StatusCode code;
    const char* word;
  };
  const Case cases[] = {
      {[](v1::GenerateRequest* r) { r->set_model("x"); }, grpc::StatusCode::NOT_FOUND, "'x'"},
      {[](v1::GenerateRequest* r) { r->clear_prompt(); }, grpc::StatusCode::INVALID_ARGUMENT,
       "prompt"},
      {[](v1::GenerateRequest* r) { r->mutable_token_ids()->add_ids(-4); },
       grpc::StatusCode::INVALID_ARGUMENT, "token_ids"},
      {[](v1::GenerateRequest* r) {
         r->mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
       },
       grpc::StatusCode::INVALID_ARGUMENT, "temperature"},
      {[](v1::GenerateRequest* r) { r->mutable_sampling()->set_top_p(0); },
       grpc::StatusCode::INVALID_ARGUMENT, "top_p"},
      {[](v1::GenerateRequest* r) { r->mutable_sampling()->set_repetition_penalty(0); },
       grpc::StatusCode::INVALID_ARGUMENT, "repetition_penalty"},
      {[](v1::GenerateRequest* r) { (*r->mutable_sampling()->mutable_logit_bias())[-1] = 1; },
       grpc::StatusCode::INVALID_ARGUMENT, "logit_bias"},
      {[](v1::GenerateRequest* r) {
         (*r->mutable_sampling()->mutable_logit_bias())[1] =
             std::numeric_limits<float>::quiet_NaN();
       },
       grpc::StatusCode::INVALID_ARGUMENT, "logit_bias"},
      {[](v1::GenerateRequest* r) {
         for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
       },
       grpc::StatusCode::INVALID_ARGUMENT, "1024"},
      {[](v1::GenerateRequest* r) { r->mutable_stopping()->set_max_tokens(0); },
       grpc::StatusCode::INVALID_ARGUMENT, "max_tokens"},
      {[](v1::GenerateRequest* r) { r->mutable_stopping()->set_max_tokens(5000); },
       grpc::StatusCode::INVALID_ARGUMENT, "5000"},
      {[](v1::GenerateRequest* r) { r->set_deadline_ms(0); }, grpc::StatusCode::INVALID_ARGUMENT,
       "deadline_ms"},
      {[](v1::GenerateRequest* r) { r->set_request_id(std::string(129, 'r')); },
       grpc::StatusCode::INVALID_ARGUMENT, "request_id"},
      {[](v1::GenerateRequest* r) { r->mutable_sampling()->set_n(17); },
       grpc::StatusCode::INVALID_ARGUMENT, "'n'"},
      {[](v1::GenerateRequest* r) { r->set_idempotency_key(std::string(256, 'k')); },
       grpc::StatusCode::INVALID_ARGUMENT, "idempotency_key"},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Request(3);
    c.change(&request);
    const Answer answer = Generate(request);
    EXPECT_EQ(answer.status.error_code(), c.code) << answer.status.error_message();
    EXPECT_NE(answer.status.error_message().find(c.word), std::string::npos)
        << answer.status.error_message();
  }
  EXPECT_TRUE(harness_.engine().submits().empty());
}

TEST_F(GrpcTest, CancellingAborts) {
  harness_.engine().Hold();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request(20));
  ASSERT_TRUE(harness_.engine().WaitForSubmits(1));
  harness_.engine().Release(1);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(harness_.engine().WaitForAborts(1));
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_requests_in_flight", 0));
}

TEST_F(GrpcTest, AbortEndsARequestByItsId) {
  harness_.engine().Hold();
  v1::GenerateRequest request = Request(20);
  request.set_request_id("to-end");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  ASSERT_TRUE(harness_.engine().WaitForSubmits(1));
  for (bool found : {true, false}) {
    grpc::ClientContext abort_context;
    v1::AbortRequest abort;
    abort.set_request_id("to-end");
    v1::AbortResponse response;
    ASSERT_TRUE(stub_->Abort(&abort_context, abort, &response).ok());
    EXPECT_EQ(response.found(), found);
  }
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.choices(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(message.usage().prompt_tokens(), 2);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(harness_.engine().WaitForAborts(1));
}

TEST_F(GrpcTest, TokenizesBothWays) {
  grpc::ClientContext tokenize_context;
  v1::TokenizeRequest request;
  request.set_text("Straße 😀 42");
  v1::TokenizeResponse response;
  ASSERT_TRUE(stub_->Tokenize(&tokenize_context, request, &response).ok());
  const std::vector<int32_t> ids(response.token_ids().begin(), response.token_ids().end());
  EXPECT_EQ(ids, *GetTestModel().tokenizer->Encode(request.text()));
  EXPECT_EQ(response.max_model_len(), 2048);

  grpc::ClientContext detokenize_context;
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = response.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&detokenize_context, back, &text).ok());
  EXPECT_EQ(text.text(), request.text());

  grpc::ClientContext bad_context;
  back.add_token_ids(99'999'999);
  EXPECT_EQ(stub_->Detokenize(&bad_context, back, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcTest, ListsModels) {
  grpc::ClientContext list_context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&list_context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).id(), "smol");
}

TEST_F(GrpcTest, ChatRendersTheConversation) {
  v1::ChatRequest request;
  request.mutable_base()->mutable_stopping()->set_max_tokens(4);
  v1::ChatMessage* message = request.add_messages();
  message->set_role("user");
  message->set_content("Hello");
  grpc::ClientContext context;
  auto reader = stub_->Chat(&context, request);
  v1::GenerateResponse response;
  std::string text;
  while (reader->Read(&response)) {
    for (const v1::ChoiceDelta& choice : response.choices()) text += choice.text();
  }
  ASSERT_TRUE(reader->Finish().ok());
  const v1::GenerateRequest sent = harness_.engine().submits()[0].request();
  const Tokenizer& tokenizer = *GetTestModel().tokenizer;
  EXPECT_EQ(text, tokenizer.Decode(harness_.engine().AnswerIds(sent), true));
  const auto& ids = sent.token_ids().ids();
  EXPECT_TRUE(tokenizer.Decode({ids.data(), static_cast<size_t>(ids.size())}, false)
                  .ends_with("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(GrpcTest, ChatNamesTheFieldThatIsWrong) {
  auto refused = [&](const v1::ChatRequest& request) {
    grpc::ClientContext context;
    const grpc::Status status = stub_->Chat(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::ChatRequest request;
  EXPECT_THAT(refused(request), testing::HasSubstr("messages"));
  request.add_messages()->set_role("robot");
  EXPECT_THAT(refused(request), testing::HasSubstr("messages[0].role"));
  request.mutable_messages(0)->set_role("user");
  request.mutable_base()->set_text("and a prompt");
  EXPECT_THAT(refused(request), testing::HasSubstr("base.prompt"));
}

TEST_F(GrpcTest, HealthFollowsReadiness) {
  HealthClient health(channel_);
  EXPECT_TRUE(health.WaitFor("", HealthClient::kServing));
  EXPECT_TRUE(health.WaitFor("flotilla.v1.Inference", HealthClient::kServing));
  EXPECT_EQ(health.Check("flotilla.v1.Engine"), -1) << "not a service of the router";
  harness_.engine().SetReachable(false);
  harness_.engine().BreakStream();
  EXPECT_TRUE(health.WaitFor("", HealthClient::kNotServing));
  EXPECT_TRUE(health.WaitFor("flotilla.v1.Inference", HealthClient::kNotServing));
}

class SlowGrpcTest : public GrpcTest {
 public:
  static HarnessOptions Options() {
    HarnessOptions options;
    options.grpc.streams.max_buffer_bytes = 16 << 10;
    options.engine.max_model_len = 1'000'000;
    options.engine.heartbeat_ms = 5000;  // the flood may delay one
    return options;
  }

 protected:
  SlowGrpcTest() : GrpcTest(Options()) {}
};

TEST_F(SlowGrpcTest, ASlowReaderIsEnded) {
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request(100'000));
  EXPECT_TRUE(harness_.engine().WaitForAborts(1));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

class StoppedGrpcTest : public GrpcTest {
 protected:
  static HarnessOptions Options() {
    HarnessOptions options = SlowGrpcTest::Options();
    options.grpc.streams.write_timeout_ms = 200;
    return options;
  }
  StoppedGrpcTest() : GrpcTest(Options()) {}
};

TEST_F(StoppedGrpcTest, AReaderThatReadsNothingMoreIsBrokenOff) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(100'000));
  EXPECT_TRUE(harness_.engine(0).WaitForSubmits(1));
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_requests_in_flight", 0));
  EXPECT_GT(harness_.Metric("flotilla_router_rejections_total{reason=\"slow_client\"}"), 0);
  context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace flotilla
