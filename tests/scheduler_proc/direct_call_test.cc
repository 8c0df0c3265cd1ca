// n and best_of on a real engine (toy model), over a Unix socket.
#include "scheduler_proc/front/direct_call.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <thread>

#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

constexpr uint64_t kSeed = 99;

struct Choices {
  grpc::Status status;
  std::map<int, std::string> texts;
  std::map<int, std::vector<int32_t>> tokens;
  std::map<int, std::vector<v1::TokenLogprobs>> logprobs;
  std::map<int, v1::FinishReason> reasons;
  size_t prompt_logprobs = 0;
  int with_usage = 0;
  bool prompt_ids_first = false;
  v1::GenerateResponse last;
};

Choices ReadAll(grpc::ClientReader<v1::GenerateResponse>* reader) {
  Choices out;
  v1::GenerateResponse response;
  for (bool first = true; reader->Read(&response); first = false) {
    if (first) out.prompt_ids_first = response.prompt_token_ids_size() > 0;
    out.last = response;
    out.with_usage += response.has_usage();
    out.prompt_logprobs += static_cast<size_t>(response.prompt_logprobs_size());
    for (const v1::ChoiceDelta& choice : response.choices()) {
      const int i = choice.index();
      out.texts[i] += choice.text();
      for (int32_t id : choice.token_ids()) out.tokens[i].push_back(id);
      for (const auto& entry : choice.logprobs()) out.logprobs[i].push_back(entry);
      if (choice.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
        out.reasons[i] = choice.finish_reason();
    }
  }
  out.status = reader->Finish();
  return out;
}

class DirectCallTest : public testing::Test {
 protected:
  explicit DirectCallTest(FakeEngineOptions options = {}) : engine_(std::move(options)) {}

  Choices Run(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return ReadAll(stub_->Generate(&context, request).get());
  }
  static v1::GenerateRequest Sampled(const std::vector<int32_t>& prompt, int32_t max_tokens,
                                     int32_t n) {
    v1::GenerateRequest request = TokenRequest(prompt, max_tokens);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(kSeed);
    request.mutable_sampling()->set_n(n);
    return request;
  }
  static std::vector<int32_t> Expected(const std::vector<int32_t>& prompt, uint32_t max_tokens,
                                       size_t candidate) {
    SamplingParams sampling;
    sampling.temperature = 1;
    sampling.seed = ChoiceSeed(kSeed, candidate);
    return FakeGenerate(FakeModel{}, prompt, sampling, max_tokens);
  }
  void ExpectIdle() {
    ASSERT_TRUE(engine_.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
    const int64_t deadline = RealClock::Now() + 20 * kNsPerSecond;
    SchedulerStats stats = engine_.engine().load().stats();
    while (stats.running + stats.waiting + stats.locked_pages > 0 && RealClock::Now() < deadline) {
      std::this_thread::yield();
      stats = engine_.engine().load().stats();
    }
    EXPECT_EQ(stats.running + stats.waiting + stats.locked_pages, 0u);
  }

  FakeEngine engine_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(engine_.Channel());
};

TEST_F(DirectCallTest, EachChoiceIsWhatItsSeedGivesAndThePromptIsComputedOnce) {
  const std::vector<int32_t> prompt = Prompt(1, 100);
  const Choices got = Run(Sampled(prompt, 12, 4));
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  ASSERT_EQ(got.tokens.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(got.tokens.at(i), Expected(prompt, 12, static_cast<size_t>(i))) << i;
    EXPECT_EQ(got.texts.at(i), engine_.tokenizer().Decode(got.tokens.at(i), true));
    EXPECT_EQ(got.reasons.at(i), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_NE(got.tokens.at(0), got.tokens.at(1));
  EXPECT_TRUE(got.prompt_ids_first);
  EXPECT_EQ(got.with_usage, 1) << "in the last message";
  EXPECT_EQ(got.last.usage().prompt_tokens(), 100);
  EXPECT_EQ(got.last.usage().completion_tokens(), 48);
  EXPECT_EQ(got.last.usage().cached_tokens(), 0) << "the first choice computed it";
  ExpectIdle();
  const SchedulerStats stats = engine_.engine().load().stats();
  EXPECT_EQ(stats.cached_tokens, 3u * 96) << "six full pages of 16 tokens, by three choices";
  EXPECT_EQ(engine_.replica().bad_plans(), 0u);
}

TEST_F(DirectCallTest, GreedyChoicesAreEqual) {
  v1::GenerateRequest request = Sampled(Prompt(2, 40), 8, 3);
  request.mutable_sampling()->set_temperature(0);
  const Choices got = Run(request);
  ASSERT_EQ(got.tokens.size(), 3u);
  EXPECT_EQ(got.tokens.at(1), got.tokens.at(0));
  EXPECT_EQ(got.tokens.at(2), got.tokens.at(0));
}

TEST_F(DirectCallTest, BestOfTellsTheMostLikely) {
  const std::vector<int32_t> prompt = Prompt(3, 40);
  v1::GenerateRequest request = Sampled(prompt, 10, 2);
  request.mutable_sampling()->set_best_of(7);
  std::vector<double> means;
  for (size_t i = 0; i < 7; ++i) {
    double sum = 0;
    uint32_t position = 40;
    for (int32_t token : Expected(prompt, 10, i)) sum += FakeLogprob(token, position++);
    means.push_back(sum / 10);
  }
  std::vector<size_t> order(7);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return means[a] > means[b]; });
  for (const bool logprobs : {false, true}) {
    if (logprobs) request.mutable_output()->set_logprobs(0);
    const Choices got = Run(request);
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    ASSERT_EQ(got.tokens.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(got.tokens.at(i), Expected(prompt, 10, order[static_cast<size_t>(i)]));
      EXPECT_EQ(got.logprobs.contains(i) ? got.logprobs.at(i).size() : 0, logprobs ? 10u : 0u);
    }
    EXPECT_EQ(got.last.usage().completion_tokens(), 70);
    EXPECT_EQ(got.with_usage, 1);
  }
  ExpectIdle();
}

TEST_F(DirectCallTest, EveryChoiceEchoesThePromptAndItsLogprobs) {
  const std::vector<int32_t> prompt = Prompt(4, 40);
  v1::GenerateRequest request = Sampled(prompt, 4, 3);
  request.mutable_output()->set_echo(true);
  request.mutable_output()->set_logprobs(0);
  const Choices echoed = Run(request);
  ASSERT_TRUE(echoed.status.ok()) << echoed.status.error_message();
  EXPECT_EQ(echoed.prompt_logprobs, 0u) << "nobody asked for them alone";
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(echoed.tokens.at(i).size(), 44u);
    ASSERT_EQ(echoed.logprobs.at(i).size(), 44u);
    for (size_t t = 0; t < 40; ++t) {
      EXPECT_EQ(echoed.tokens.at(i)[t], prompt[t]);
      EXPECT_EQ(echoed.logprobs.at(i)[t].logprob(), echoed.logprobs.at(0)[t].logprob());
      EXPECT_EQ(echoed.logprobs.at(i)[t].rank(), t == 0 ? 0 : 1);
    }
  }
  request.mutable_output()->set_prompt_logprobs(1);
  request.mutable_output()->set_echo(false);
  EXPECT_EQ(Run(request).prompt_logprobs, 39u) << "once";
}

TEST_F(DirectCallTest, AStopStringEndsItsChoiceOnly) {
  const std::vector<int32_t> prompt = Prompt(5, 40);
  v1::GenerateRequest request = Sampled(prompt, 40, 3);
  const std::string whole = engine_.tokenizer().Decode(Expected(prompt, 40, 1), true);
  const std::string stop = whole.substr(whole.find(" w", whole.size() / 3), 5);
  request.mutable_stopping()->add_stop(stop);
  const Choices got = Run(request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.texts.at(1), whole.substr(0, whole.find(stop)));
  int tokens = 0;
  for (int i = 0; i < 3; ++i) {
    tokens += static_cast<int>(got.tokens.at(i).size());
    const std::string text =
        engine_.tokenizer().Decode(Expected(prompt, 40, static_cast<size_t>(i)), true);
    EXPECT_EQ(got.texts.at(i), text.substr(0, text.find(stop)));
    EXPECT_EQ(got.reasons.at(i), text.find(stop) == std::string::npos ? v1::FINISH_REASON_LENGTH
                                                                      : v1::FINISH_REASON_STOP);
  }
  EXPECT_EQ(got.last.usage().completion_tokens(), tokens);
}

TEST_F(DirectCallTest, CancelDeadlineAndAbortEndAllChoices) {
  v1::GenerateRequest request = Sampled(Prompt(6, 50), 1900, 4);
  request.set_request_id("mine");
  engine_.replica().HoldAfter(10);
  {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
    EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  }
  engine_.replica().Hold(false);
  ExpectIdle();

  engine_.replica().HoldAfter(10);
  {
    grpc::ClientContext context, abort_context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    v1::AbortRequest abort;
    v1::AbortResponse answer;
    abort.set_request_id("mine");
    ASSERT_TRUE(stub_->Abort(&abort_context, abort, &answer).ok());
    EXPECT_TRUE(answer.found());
    const Choices rest = ReadAll(reader.get());
    EXPECT_TRUE(rest.status.ok());
    EXPECT_EQ(rest.reasons.size(), 4u);
    for (const auto& [index, reason] : rest.reasons) EXPECT_EQ(reason, v1::FINISH_REASON_ABORT);
  }
  engine_.replica().Hold(true);
  request.set_deadline_ms(50);
  const Choices late = Run(request);
  engine_.replica().Hold(false);
  EXPECT_EQ(late.reasons.size(), 4u);
  for (const auto& [index, reason] : late.reasons) EXPECT_EQ(reason, v1::FINISH_REASON_DEADLINE);
  ExpectIdle();
}

class SmallQueueTest : public DirectCallTest {
 protected:
  static FakeEngineOptions Options() {
    FakeEngineOptions options;
    options.replica.max_slots = 1;
    options.engine.core.max_queued_requests = 2;
    return options;
  }
  SmallQueueTest() : DirectCallTest(Options()) {}
};

TEST_F(SmallQueueTest, WithoutRoomForAllThereIsNone) {
  engine_.replica().Hold(true);
  const Choices got = Run(Sampled(Prompt(7, 20), 4, 16));
  engine_.replica().Hold(false);
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectIdle();
  EXPECT_TRUE(Run(Sampled(Prompt(7, 20), 4, 2)).status.ok());
}

class SlowReaderTest : public DirectCallTest {
 protected:
  static FakeEngineOptions Options() {
    FakeEngineOptions options;
    options.engine.max_call_unsent_bytes = 2000;
    return options;
  }
  SlowReaderTest() : DirectCallTest(Options()) {}
};

TEST_F(SlowReaderTest, WhatBestOfKeepsIsNotTheReadersFault) {
  v1::GenerateRequest request = Sampled(Prompt(8, 20), 400, 2);
  request.mutable_sampling()->set_best_of(3);
  const Choices got = Run(request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.tokens.at(0).size(), 400u);
  EXPECT_EQ(got.tokens.at(1).size(), 400u);
}

}  // namespace
}  // namespace flotilla
