// flotilla.v1.Inference/Embed on a real engine (toy model), over a Unix socket.
#include "scheduler_proc/front/embed_call.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

class EmbedCallTest : public testing::Test {
 protected:
  static v1::EmbedRequest Request(const std::vector<int32_t>& prompt, bool mean) {
    v1::EmbedRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    if (mean) request.set_pooling(v1::EmbedRequest::POOLING_MEAN);
    request.set_normalize(false);
    return request;
  }
  grpc::Status Embed(const v1::EmbedRequest& request, int64_t patience_ms = 20'000) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(patience_ms));
    response_.Clear();
    return stub_->Embed(&context, request, &response_);
  }
  std::vector<float> embedding() const {
    return {response_.embedding().begin(), response_.embedding().end()};
  }

  FakeEngine engine_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(engine_.Channel());
  v1::EmbedResponse response_;
};

TEST_F(EmbedCallTest, BothPoolingsBesideStreamsThatDecode) {
  std::jthread decoding([&] { Generate(stub_.get(), TokenRequest(Prompt(1, 30), 200)); });
  for (const uint32_t length : {1u, 16u, 700u, 2048u}) {
    const std::vector<int32_t> prompt = Prompt(length, length);
    for (const bool mean : {true, false, true, false}) {
      ASSERT_TRUE(Embed(Request(prompt, mean)).ok()) << length;
      EXPECT_EQ(embedding(), FakeEmbedding(prompt, mean)) << length;
      EXPECT_EQ(response_.usage().prompt_tokens(), static_cast<int>(length));
      EXPECT_EQ(response_.usage().completion_tokens(), 0);
      if (mean) {
        EXPECT_EQ(response_.usage().cached_tokens(), 0) << "a mean needs every position";
      }
    }
    EXPECT_EQ(response_.usage().cached_tokens(), static_cast<int>((length - 1) / 16 * 16))
        << "what came before has filled the cache";
  }
  decoding.join();
  EXPECT_EQ(engine_.replica().bad_plans(), 0u);
}

TEST_F(EmbedCallTest, IsNormalisedUnlessToldOtherwise) {
  v1::EmbedRequest request = Request(Prompt(3, 20), false);
  request.clear_normalize();
  ASSERT_TRUE(Embed(request).ok());
  const std::vector<float> raw = FakeEmbedding(Prompt(3, 20), false);
  double squares = 0;
  for (float value : raw) squares += double{value} * value;
  for (size_t i = 0; i < raw.size(); ++i)
    EXPECT_EQ(embedding()[i], static_cast<float>(raw[i] / std::sqrt(squares)));
}

TEST_F(EmbedCallTest, RefusesByName) {
  EXPECT_EQ(Embed({}).error_message(), "prompt: missing; set text or token_ids");
  v1::EmbedRequest request = Request(Prompt(1, 2049), false);
  EXPECT_EQ(Embed(request).error_message(), "prompt: 2049 tokens; the context has 2048");
  request = Request({512}, false);
  EXPECT_EQ(Embed(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request({1}, false);
  request.set_model("other");
  EXPECT_EQ(Embed(request).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(EmbedCallTest, CancelAndDeadlineFreeEverything) {
  engine_.replica().Hold(true);
  EXPECT_EQ(Embed(Request(Prompt(1, 100), true), 100).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  v1::EmbedRequest request = Request(Prompt(2, 100), true);
  request.set_deadline_ms(50);
  EXPECT_EQ(Embed(request).error_message(), "the request's deadline is over");
  engine_.replica().Hold(false);
  ASSERT_TRUE(engine_.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
  ASSERT_TRUE(Embed(Request(Prompt(2, 100), true)).ok());
  EXPECT_EQ(embedding(), FakeEmbedding(Prompt(2, 100), true));
}

TEST_F(EmbedCallTest, AKilledRankChangesNothing) {
  engine_.replica().HoldAfter(1);
  std::thread killer([&] {
    engine_.replica().Kill(0);
    engine_.replica().Restart(0);
    engine_.replica().Hold(false);
  });
  const std::vector<int32_t> prompt = Prompt(4, 1500);
  const grpc::Status status = Embed(Request(prompt, true));
  killer.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(embedding(), FakeEmbedding(prompt, true));
}

}  // namespace
}  // namespace flotilla
