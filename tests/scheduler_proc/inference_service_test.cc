// flotilla.v1.Inference on a real engine (toy model), over a Unix socket.
#include "scheduler_proc/front/inference_service.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"
#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

class InferenceTest : public ::testing::Test {
 protected:
  explicit InferenceTest(FakeEngineOptions options = {}) : engine_(std::move(options)) {}

  // Until nothing is live, running or locked; each wait has a deadline.
  void ExpectIdle() {
    ASSERT_TRUE(engine_.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
    const int64_t deadline = RealClock::Now() + 20 * kNsPerSecond;
    SchedulerStats stats = engine_.engine().load().stats();
    while ((stats.running + stats.waiting + stats.locked_pages > 0) &&
           RealClock::Now() < deadline) {
      std::this_thread::yield();
      stats = engine_.engine().load().stats();
    }
    EXPECT_EQ(stats.running, 0u);
    EXPECT_EQ(stats.waiting, 0u);
    EXPECT_EQ(stats.locked_pages, 0u);
    EXPECT_EQ(stats.free_pages + stats.evictable_pages, stats.total_pages);
  }

  FakeEngine engine_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(engine_.Channel());
};

TEST_F(InferenceTest, GeneratesTheModelsTokensAndTheirText) {
  const std::vector<int32_t> prompt = Prompt(1, 40);
  const Generated got = Generate(stub_.get(), TokenRequest(prompt, 24));
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.tokens, FakeGreedy(prompt, 24));
  EXPECT_EQ(got.text, engine_.tokenizer().Decode(got.tokens, true));
  EXPECT_EQ(got.last.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.last.usage().prompt_tokens(), 40);
  EXPECT_EQ(got.last.usage().completion_tokens(), 24);
  EXPECT_FALSE(got.last.has_timing());
  EXPECT_EQ(got.last.model(), "model");
  EXPECT_FALSE(got.last.request_id().empty());
  EXPECT_EQ(got.first.prompt_token_ids_size(), 40);
  ExpectIdle();
}

TEST_F(InferenceTest, TokenisesText) {
  v1::GenerateRequest request = TokenRequest({}, 8);
  request.set_text("Bonjour été");
  const Generated got = Generate(stub_.get(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  const auto prompt = *engine_.tokenizer().Encode("Bonjour été");
  EXPECT_EQ(got.tokens, FakeGreedy(prompt, 8));
}

TEST_F(InferenceTest, ManyAtOnceGiveEachItsOwnTokens) {
  constexpr int kCalls = 24;
  std::vector<Generated> got(kCalls);
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i)
    threads.emplace_back([&, i] {
      got[static_cast<size_t>(i)] =
          Generate(stub_.get(), TokenRequest(Prompt(static_cast<uint32_t>(i) % 5, 30 + i), 20));
    });
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < kCalls; ++i)
    EXPECT_EQ(got[static_cast<size_t>(i)].tokens,
              FakeGreedy(Prompt(static_cast<uint32_t>(i) % 5, 30 + i), 20))
        << i;
  EXPECT_EQ(engine_.replica().bad_plans(), 0u);
  ExpectIdle();
}

TEST_F(InferenceTest, LogprobsCarryBytesAndOffsets) {
  v1::GenerateRequest request = TokenRequest(Prompt(3, 20), 16);
  request.mutable_output()->set_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(1);
  const Generated got = Generate(stub_.get(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  ASSERT_EQ(got.logprobs.size(), 16u);
  ASSERT_EQ(got.prompt_logprobs.size(), 19u);
  std::string bytes;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].token_id(), got.tokens[i]);
    EXPECT_EQ(got.logprobs[i].logprob(), FakeLogprob(got.tokens[i], 20 + static_cast<uint32_t>(i)));
    EXPECT_EQ(got.logprobs[i].top_size(), 2);
    EXPECT_EQ(got.logprobs[i].token(), engine_.tokenizer().TokenBytes(got.tokens[i]));
    if (i == 0) continue;
    EXPECT_GE(got.logprobs[i].text_offset(), got.logprobs[i - 1].text_offset());
  }
  EXPECT_EQ(got.logprobs[0].text_offset(), 0);
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i)
    EXPECT_EQ(got.prompt_logprobs[i].token_id(), Prompt(3, 20)[i + 1]);
}

TEST_F(InferenceTest, EchoPutsThePromptFirst) {
  v1::GenerateRequest request = TokenRequest({}, 4);
  request.set_text("abc");
  request.mutable_output()->set_echo(true);
  request.mutable_output()->set_logprobs(0);
  const Generated got = Generate(stub_.get(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.text.substr(0, 3), "abc");
  ASSERT_EQ(got.tokens.size(), 7u);
  EXPECT_EQ(got.tokens[0], 'a');
  ASSERT_EQ(got.logprobs.size(), 7u);
  EXPECT_EQ(got.logprobs[0].rank(), 0);  // the first token has none
  EXPECT_EQ(got.logprobs[1].rank(), 1);
  EXPECT_EQ(got.logprobs[3].text_offset(), 3);
  EXPECT_TRUE(got.prompt_logprobs.empty());
  EXPECT_EQ(got.last.usage().completion_tokens(), 4);
}

TEST_F(InferenceTest, StopStringEndsTextUsageAndTokens) {
  const std::vector<int32_t> prompt = Prompt(9, 25);
  const std::vector<int32_t> all = FakeGreedy(prompt, 40);
  const std::string text = engine_.tokenizer().Decode(all, true);
  // A word in the middle of what would be generated.
  const size_t at = text.find(" w", text.size() / 3);
  ASSERT_NE(at, std::string::npos);
  const std::string stop = text.substr(at, 5);
  v1::GenerateRequest request = TokenRequest(prompt, 40);
  request.mutable_stopping()->add_stop("never there");
  request.mutable_stopping()->add_stop(stop);
  const Generated got = Generate(stub_.get(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(got.last.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(got.last.choices(0).stop_reason(), stop);
  EXPECT_EQ(got.last.usage().completion_tokens(), static_cast<int>(got.tokens.size()));
  EXPECT_LT(got.tokens.size(), all.size());
  EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), all.begin()));
  ExpectIdle();
}

TEST_F(InferenceTest, MinTokensComeBeforeAnyStop) {
  const std::vector<int32_t> prompt = Prompt(9, 25);
  const std::vector<int32_t> all = FakeGreedy(prompt, 40);
  // A word among the first tokens.
  const auto word = std::find_if(all.begin(), all.end(), [](int32_t id) { return id >= 256; });
  ASSERT_LT(word - all.begin(), 10);
  v1::GenerateRequest request = TokenRequest(prompt, 40);
  request.mutable_stopping()->add_stop(engine_.tokenizer().Decode(std::vector{*word}, true));
  const Generated early = Generate(stub_.get(), request);
  ASSERT_TRUE(early.status.ok()) << early.status.error_message();
  ASSERT_LE(early.tokens.size(), 10u);
  request.mutable_stopping()->set_min_tokens(20);
  const Generated late = Generate(stub_.get(), request);
  ASSERT_TRUE(late.status.ok()) << late.status.error_message();
  EXPECT_GT(late.tokens.size(), 20u);
  EXPECT_EQ(late.last.usage().completion_tokens(), static_cast<int>(late.tokens.size()));
  EXPECT_TRUE(std::equal(late.tokens.begin(), late.tokens.end(), all.begin()));
  EXPECT_EQ(late.text.find(early.text), 0u);
  ExpectIdle();
}

TEST_F(InferenceTest, StopTokenIsATokenButNoText) {
  const std::vector<int32_t> prompt = Prompt(4, 10);
  const std::vector<int32_t> all = FakeGreedy(prompt, 12);
  v1::GenerateRequest request = TokenRequest(prompt, 12);
  request.mutable_stopping()->add_stop_token_ids(all[6]);
  const size_t end =
      static_cast<size_t>(std::find(all.begin(), all.end(), all[6]) - all.begin()) + 1;
  const Generated got = Generate(stub_.get(), request);
  EXPECT_EQ(got.tokens, std::vector<int32_t>(all.begin(), all.begin() + static_cast<long>(end)));
  EXPECT_EQ(got.text, engine_.tokenizer().Decode(
                          std::vector<int32_t>(got.tokens.begin(), got.tokens.end() - 1), true));
  EXPECT_EQ(got.last.choices(0).stop_reason(), std::to_string(all[6]));
}

TEST_F(InferenceTest, CancelFreesWithinTwoSteps) {
  engine_.replica().HoldAfter(10);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, TokenRequest(Prompt(5, 100), 1900));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(engine_.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
  const uint64_t steps = engine_.replica().steps();  // the abort was handled before this
  engine_.replica().Hold(false);
  ExpectIdle();
  EXPECT_LE(engine_.replica().steps(), steps + 2);
}

TEST_F(InferenceTest, AbortByIdEndsTheCallWithAbort) {
  v1::GenerateRequest request = TokenRequest(Prompt(6, 30), 1900);
  request.set_request_id("mine");
  engine_.replica().HoldAfter(10);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  v1::AbortRequest abort;
  v1::AbortResponse answer;
  abort.set_request_id("mine");
  grpc::ClientContext c1, c2;
  ASSERT_TRUE(stub_->Abort(&c1, abort, &answer).ok());
  EXPECT_TRUE(answer.found());
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_ABORT);
  engine_.replica().Hold(false);
  ExpectIdle();
  ASSERT_TRUE(stub_->Abort(&c2, abort, &answer).ok());
  EXPECT_FALSE(answer.found());
}

TEST_F(InferenceTest, DeadlineEndsWithDeadline) {
  engine_.replica().Hold(true);
  v1::GenerateRequest request = TokenRequest(Prompt(6, 30), 1900);
  request.set_deadline_ms(50);
  const Generated got = Generate(stub_.get(), request);
  engine_.replica().Hold(false);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.last.choices(0).finish_reason(), v1::FINISH_REASON_DEADLINE);
  ExpectIdle();
}

TEST_F(InferenceTest, TokenizeDetokenizeListModels) {
  grpc::ClientContext c1, c2, c3, c4;
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse tokens;
  tokenize.set_text("hé");
  ASSERT_TRUE(stub_->Tokenize(&c1, tokenize, &tokens).ok());
  EXPECT_EQ(std::vector<int32_t>(tokens.token_ids().begin(), tokens.token_ids().end()),
            (std::vector<int32_t>{'h', 0xc3, 0xa9}));
  EXPECT_EQ(tokens.max_model_len(), 2048);
  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  ASSERT_TRUE(stub_->Detokenize(&c2, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hé");
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&c3, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).id(), "model");
  detokenize.add_token_ids(512);
  const grpc::Status bad = stub_->Detokenize(&c4, detokenize, &text);
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(bad.error_message().find("token_ids[3]"), std::string::npos);
}

TEST_F(InferenceTest, ChatIsGenerateOfTheRenderedConversation) {
  v1::ChatRequest chat;
  chat.mutable_base()->mutable_stopping()->set_max_tokens(6);
  chat.mutable_base()->mutable_sampling()->set_temperature(0);
  grpc::ClientContext c1, c2;
  EXPECT_EQ(stub_->Chat(&c1, chat)->Finish().error_message(),
            "messages: must have at least one message");
  v1::ChatMessage* message = chat.add_messages();
  message->set_role("user");
  message->set_content("hé");
  auto reader = stub_->Chat(&c2, chat);
  v1::GenerateResponse response;
  std::vector<int32_t> ids;
  while (reader->Read(&response)) {
    for (const v1::ChoiceDelta& choice : response.choices())
      ids.insert(ids.end(), choice.token_ids().begin(), choice.token_ids().end());
  }
  ASSERT_TRUE(reader->Finish().ok());
  const Generated direct = Generate(stub_.get(), TokenRequest({'u', ':', 'h', 0xc3, 0xa9, ';'}, 6));
  EXPECT_EQ(ids, direct.tokens);
  EXPECT_EQ(ids.size(), 6u);
}

TEST_F(InferenceTest, AnswersAreToldApartByRoutersOnly) {
  v1::ChatRequest chat;
  chat.add_messages()->set_role("user");
  auto refused = [&](void (*ask)(v1::ChatRequest*), const char* field) {
    v1::ChatRequest request = chat;
    ask(&request);
    grpc::ClientContext c1, c2;
    v1::ApplyTemplateResponse rendered;
    for (const grpc::Status& status :
         {stub_->Chat(&c1, request)->Finish(), stub_->ApplyTemplate(&c2, request, &rendered)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
      EXPECT_EQ(status.error_message().find(field), 0u) << status.error_message();
    }
  };
  refused([](v1::ChatRequest* r) { r->set_parse_answer(true); }, "parse_answer: ");
  refused([](v1::ChatRequest* r) { r->set_tool_choice_json("\"auto\""); }, "tool_choice_json: ");
  refused([](v1::ChatRequest* r) { r->set_parallel_tool_calls(true); }, "parallel_tool_calls: ");
}

TEST_F(InferenceTest, RandomAbortsLeaveNoLockedPage) {
  constexpr int kThreads = 8, kEach = kSanitized ? 12 : 125;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const uint32_t n = static_cast<uint32_t>(t * kEach + i);
        grpc::ClientContext context;
        auto reader = stub_->Generate(&context, TokenRequest(Prompt(n % 7, 1 + n % 90), 200));
        v1::GenerateResponse response;
        for (uint32_t reads = n % 5; reads > 0 && reader->Read(&response); --reads) {
        }
        context.TryCancel();
        while (reader->Read(&response)) {
        }
        reader->Finish();
      }
    });
  for (std::thread& t : threads) t.join();
  ExpectIdle();
  EXPECT_EQ(engine_.replica().bad_plans(), 0u);
  const Generated after = Generate(stub_.get(), TokenRequest(Prompt(2, 50), 10));
  EXPECT_EQ(after.tokens, FakeGreedy(Prompt(2, 50), 10));
}

// The second is refused from the cache, before Submit has returned.
TEST(InferenceGrammarTest, AGrammarThatIsKnownToBeNoneIsRefusedAgain) {
  const RealClock clock;
  prometheus::Registry registry;
  GrammarCompiler::Options compiler_options;
  compiler_options.sandbox.program = testing::SandboxProgram();
  compiler_options.timeout_ms = 60'000;
  auto compiler =
      GrammarCompiler::Start(compiler_options, testing::TestTokens(), &clock, &registry);
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  FakeEngineOptions options;
  options.grammars = compiler->get();
  FakeEngine engine(std::move(options));
  auto stub = v1::Inference::NewStub(engine.Channel());
  for (const int choices : {1, 1, 3}) {
    v1::GenerateRequest request = TokenRequest(Prompt(1, 5), 5);
    request.mutable_structured()->set_regex("((");
    request.mutable_sampling()->set_n(choices);
    const Generated refused = Generate(stub.get(), request);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(refused.status.error_message().starts_with("structured.regex: "))
        << refused.status.error_message();
  }
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
}

}  // namespace
}  // namespace flotilla
