// The bounds on answers that are kept: of a request, of all, on every way that keeps one.
#include "router/admission/answer_memory.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBytes = "flotilla_router_buffered_answer_bytes";
constexpr const char* kTooLarge = "flotilla_router_rejections_total{reason=\"answer_limit\"}";
constexpr const char* kNoRoom = "flotilla_router_rejections_total{reason=\"answer_memory\"}";

TEST(AnswerRoomTest, ARequestAndAllTogetherHaveABound) {
  constexpr uint64_t kUnit = AnswerRoom::kFreeBytes;
  prometheus::Registry registry;
  RouterMetrics metrics(&registry);
  AnswerMemory memory({.max_answer_bytes = 4 * kUnit, .max_buffered_answer_bytes = 6 * kUnit},
                      &metrics);
  AnswerRoom a(&memory), b(&memory), small(&memory);
  EXPECT_FALSE(a.Resize(4 * kUnit));
  EXPECT_EQ(a.Resize(4 * kUnit + 1)->code, absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(b.Resize(2 * kUnit));
  const auto full = b.Resize(2 * kUnit + 1);
  EXPECT_EQ(full->code, absl::StatusCode::kUnavailable);
  EXPECT_GT(full->retry_after_ms, 0);
  EXPECT_FALSE(small.Resize(kUnit)) << "large ones refuse no small one";
  EXPECT_TRUE(small.Resize(kUnit + 1));
  EXPECT_FALSE(a.Resize(kUnit));
  EXPECT_FALSE(b.Resize(3 * kUnit));
  {
    AnswerRoom gone(&memory);
    EXPECT_FALSE(gone.Resize(kUnit));
  }
  EXPECT_FALSE(small.Resize(kUnit + 1)) << "what was given back is there";
}

class AnswerMemoryTest : public ::testing::Test {
 protected:
  void Start(uint64_t of_one, uint64_t of_all) {
    HarnessOptions options;
    options.answers = {.max_answer_bytes = of_one, .max_buffered_answer_bytes = of_all};
    options.engine.max_model_len = 100'000;
    harness_ = std::make_unique<RouterHarness>(options);
  }
  HttpAnswer Ask(const char* path, std::string_view fields) {
    return Post(harness_->port(), path, StrCat(R"({"model":"smol",)", std::string(fields), "}"));
  }
  void ExpectTooLarge(const char* path, std::string_view fields) {
    const HttpAnswer answer = Ask(path, fields);
    EXPECT_EQ(answer.status, 400) << path << fields << answer.body;
    EXPECT_THAT(ErrorField(answer, "message"), HasSubstr("ask for a stream")) << path << fields;
    EXPECT_TRUE(harness_->WaitForMetric(kBytes, 0)) << path << fields;
  }
  static std::string Ids(int count) {
    std::string ids = "7";
    for (int i = 1; i < count; ++i) ids += ",7";
    return StrCat("[", ids, "]");
  }

  std::unique_ptr<RouterHarness> harness_;
};

TEST_F(AnswerMemoryTest, EveryWholeAnswerThatIsTooLargeIsRefused) {
  Start(20'000, 1 << 30);
  EXPECT_EQ(Ask("/v1/completions", R"("prompt":"Hi","max_tokens":100)").status, 200);
  ExpectTooLarge("/v1/completions", R"("prompt":"Hi","max_tokens":50000)");
  ExpectTooLarge("/v1/completions", R"("prompt":"Hi","max_tokens":100,"logprobs":20,"n":8)");
  ExpectTooLarge("/v1/completions", R"("prompt":"Hi","max_tokens":100,"best_of":16)");
  ExpectTooLarge("/v1/completions",
                 StrCat(R"("max_tokens":1,"echo":true,"logprobs":5,"prompt":)", Ids(300)));
  ExpectTooLarge("/v1/completions",
                 StrCat(R"("max_tokens":1,"prompt_logprobs":5,"n":4,"prompt":)", Ids(300)));
  ExpectTooLarge("/v1/completions",
                 StrCat(R"("max_tokens":1,"return_token_ids":true,"prompt":)", Ids(10'000)));
  ExpectTooLarge("/v1/chat/completions",
                 R"("max_tokens":1000,"logprobs":true,"top_logprobs":20,
                    "messages":[{"role":"user","content":"Hi"}])");
  ExpectTooLarge("/tokenize", StrCat(R"("prompt":")", std::string(90'000, 'x'), R"(")"));
  EXPECT_EQ(harness_->Metric(kTooLarge), 8);
  EXPECT_EQ(harness_->engine().active(), 0u) << "none goes on";
  // As it says: streamed it has no such bound.
  EXPECT_EQ(Ask("/v1/completions", R"("prompt":"Hi","max_tokens":50000,"stream":true)").status,
            200);
}

TEST_F(AnswerMemoryTest, EmbeddingsHaveIt) {
  Start(/*of_one=*/500, 1 << 30);
  EXPECT_EQ(Ask("/v1/embeddings", R"("input":["a","b"])").status, 200);
  std::string inputs = R"("a")";
  for (int i = 0; i < 20; ++i) inputs += R"(,"a")";
  ExpectTooLarge("/v1/embeddings", StrCat(R"("input":[)", inputs, "]"));
}

// best_of's candidates are kept for whoever streams, too.
TEST_F(AnswerMemoryTest, GrpcsCandidatesHaveIt) {
  Start(20'000, 1 << 30);
  auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness_->app().grpc_port()), grpc::InsecureChannelCredentials()));
  const auto generate = [&](int best_of) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::GenerateRequest request;
    request.set_text("Hi");
    request.mutable_sampling()->set_best_of(best_of);
    request.mutable_stopping()->set_max_tokens(200);
    auto reader = stub->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish().error_code();
  };
  EXPECT_EQ(generate(1), grpc::StatusCode::OK);
  EXPECT_EQ(generate(4), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(harness_->WaitForMetric(kBytes, 0));
  EXPECT_EQ(harness_->engine().active(), 0u);
}

TEST_F(AnswerMemoryTest, AllTogetherHaveABound) {
  Start(1 << 30, 1 << 20);
  harness_->engine().Hold();
  constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":50000})";
  std::vector<std::unique_ptr<HttpConnection>> large;
  for (int i = 0; i < 8; ++i) {
    large.push_back(std::make_unique<HttpConnection>(harness_->port()));
    large.back()->Send(PostText("/v1/completions", kBody));
  }
  ASSERT_TRUE(harness_->engine().WaitForSubmits(8));
  harness_->engine().RunFreely();
  EXPECT_EQ(Ask("/v1/completions", R"("prompt":"Hi","max_tokens":4)").status, 200);
  int refused = 0, answered = 0;
  for (const auto& connection : large) {
    const HttpAnswer answer = connection->Read();
    answered += answer.status == 200;
    refused += answer.status == 503;
    if (answer.status == 503) {
      EXPECT_TRUE(answer.headers.contains("retry-after"));
    }
  }
  EXPECT_EQ(answered + refused, 8);
  EXPECT_GT(answered, 0);
  EXPECT_EQ(harness_->Metric(kNoRoom), refused);
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(harness_->WaitForMetric(kBytes, 0));
}

// Until its client has it, or has left.
TEST_F(AnswerMemoryTest, AnAnswerKeepsItsRoomUntilItIsSent) {
  Start(64 << 20, 64 << 20);
  harness_->engine().SetScript({2000});
  HttpConnection connection(harness_->port());
  connection.Send(
      PostText("/v1/completions",
               R"({"model":"smol","prompt":"Hi","max_tokens":3000,"n":16,"logprobs":20})"));
  ASSERT_TRUE(harness_->WaitForMetric(
      R"(flotilla_router_requests_total{code="200",route="/v1/completions"})", 1));
  EXPECT_GT(harness_->Metric(kBytes), 4 << 20);
  connection.Close();
  EXPECT_TRUE(harness_->WaitForMetric(kBytes, 0));
}

}  // namespace
}  // namespace flotilla
