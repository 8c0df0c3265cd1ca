// flotilla.v1.Engine on a real engine (toy model), over a Unix socket: a router's view.
#include "scheduler_proc/front/engine_service.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "common/base/page_hash.h"
#include "common/base/sha256.h"
#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

v1::Hello Reattach(uint64_t stream, size_t tokens, size_t prompt_logprobs = 0) {
  v1::Hello hello = TestRouter::MakeHello();
  v1::Reattach* entry = hello.add_reattach();
  entry->set_stream_id(stream);
  entry->add_token_offset(static_cast<uint32_t>(tokens));
  entry->set_prompt_logprobs(static_cast<uint32_t>(prompt_logprobs));
  return hello;
}

TEST(EngineConnect, StreamsTheTokensOfManyRequests) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  for (uint64_t s = 1; s <= 20; ++s)
    router.Submit(s, TokenRequest(Prompt(static_cast<uint32_t>(s), 50), 30));
  for (uint64_t s = 1; s <= 20; ++s) {
    ASSERT_TRUE(router.WaitDone(s)) << s;
    const Received got = router.Get(s);
    EXPECT_EQ(got.tokens, FakeGreedy(Prompt(static_cast<uint32_t>(s), 50), 30));
    EXPECT_EQ(got.text, engine.tokenizer().Decode(got.tokens, true));
    EXPECT_EQ(got.last.usage().completion_tokens(), 30);
    EXPECT_EQ(got.last.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(router.welcome_.protocol(), 1u);
  EXPECT_EQ(router.welcome_.model().fingerprint().size(), 64u);
  EXPECT_EQ(router.welcome_.reattach_ms(), 5000u);
  // The load counts every submit in, and is at rest in the end (the heartbeat tells).
  EXPECT_TRUE(
      router.Wait([&] { return router.submits_ == 20 && router.load_.running_requests() == 0; }));
}

TEST(EngineConnect, ErrorsNameTheFieldAndLeaveOthersAlone) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  v1::GenerateRequest bad = TokenRequest(Prompt(1, 10), 10);
  bad.mutable_sampling()->set_top_p(1.5f);
  v1::GenerateRequest text = TokenRequest({}, 10);
  text.set_text("routers send token ids");
  router.Submit(1, bad);
  router.Submit(2, text);
  router.Submit(3, TokenRequest(Prompt(2, 10), 10));
  ASSERT_TRUE(router.WaitDone(1) && router.WaitDone(2) && router.WaitDone(3));
  EXPECT_EQ(router.Get(1).last.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(router.Get(1).last.error().field(), "sampling.top_p");
  EXPECT_EQ(router.Get(2).last.error().field(), "text");
  EXPECT_EQ(router.Get(3).tokens, FakeGreedy(Prompt(2, 10), 10));
}

TEST(EngineConnect, RefusesWhatIsNoProtocolOfOurs) {
  FakeEngine engine;
  v1::Hello hello = TestRouter::MakeHello();
  hello.set_protocol_min(3);
  hello.set_protocol_max(4);
  TestRouter later(engine.Channel());
  later.Hello(hello);
  EXPECT_EQ(later.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  TestRouter nameless(engine.Channel());
  nameless.Hello(TestRouter::MakeHello(""));
  EXPECT_EQ(nameless.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  TestRouter silent(engine.Channel());
  silent.StartReading();
  silent.Abort(1);  // before Hello
  EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  TestRouter twice(engine.Channel());
  twice.Hello(TestRouter::MakeHello());
  engine.replica().Hold(true);
  twice.Submit(7, TokenRequest(Prompt(1, 10), 10));
  twice.Submit(7, TokenRequest(Prompt(1, 10), 10));
  EXPECT_EQ(twice.Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  engine.replica().Hold(false);
}

// Hashes of the pages of 16 that a prompt fills.
std::set<uint64_t> PagesOf(const std::vector<int32_t>& prompt) {
  std::set<uint64_t> pages;
  uint64_t hash = RootPageHash("");
  for (size_t i = 0; i + 16 <= prompt.size(); i += 16)
    pages.insert(hash = NextPageHash(hash, prompt.data() + i, 16));
  return pages;
}

TEST(EngineConnect, TellsRoutersThatAskWhatIsCached) {
  FakeEngine engine;
  v1::Hello asks = TestRouter::MakeHello(), comes_late = TestRouter::MakeHello("router-b");
  asks.set_cache_events(true);
  comes_late.set_cache_events(true);
  TestRouter router(engine.Channel()), does_not_ask(engine.Channel());
  router.Hello(asks);
  does_not_ask.Hello(TestRouter::MakeHello("router-c"));
  const std::vector<int32_t> prompt = Prompt(1, 100);
  const std::set<uint64_t> pages = PagesOf(prompt);
  ASSERT_EQ(pages.size(), 6u);
  router.Submit(1, TokenRequest(prompt, 2));
  EXPECT_TRUE(router.Wait([&] { return router.pages_ == pages; }));
  TestRouter late(engine.Channel());
  late.Hello(comes_late);
  EXPECT_TRUE(late.Wait([&] { return late.pages_ == pages; }));
  does_not_ask.Submit(1, TokenRequest(prompt, 2));
  ASSERT_TRUE(does_not_ask.WaitDone(1));
  EXPECT_TRUE(does_not_ask.Wait([&] { return does_not_ask.pages_.empty(); }));
}

TEST(EngineConnect, AbortEndsTheStream) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  engine.replica().HoldAfter(10);
  router.Submit(1, TokenRequest(Prompt(1, 10), 1900));
  ASSERT_TRUE(router.Wait([&] { return router.streams_[1].tokens.size() > 3; }));
  router.Abort(1);
  router.Abort(99);  // unknown: no effect
  ASSERT_TRUE(router.WaitDone(1));
  const Received got = router.Get(1);
  EXPECT_EQ(got.last.choices(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GE(got.last.computed_tokens(), 10 + got.tokens.size()) << "delivered or not";
  EXPECT_LE(got.last.computed_tokens(), 10 + 11u);
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 10 * kNsPerSecond));
}

TEST(EngineConnect, PingIsAnsweredAndHeartbeatsComeWhenIdle) {
  FakeEngineOptions options;
  options.engine.channel.heartbeat_ns = 20 * kNsPerMs;
  FakeEngine engine(std::move(options));
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  v1::RouterFrame ping;
  ping.mutable_ping()->set_sent_ns(1234);
  router.Send(ping);
  EXPECT_TRUE(router.Wait([&] { return router.pong_ == 1234; }));
  EXPECT_TRUE(router.Wait([&] { return router.steps_ >= 5; }));
}

TEST(EngineConnect, ReattachGivesExactlyTheRest) {
  FakeEngine engine;
  const std::vector<int32_t> prompt = Prompt(3, 40);
  v1::GenerateRequest request = TokenRequest(prompt, 400);
  request.mutable_output()->set_logprobs(1);
  Received first;
  {
    TestRouter router(engine.Channel());
    router.Hello(TestRouter::MakeHello());
    engine.replica().HoldAfter(40);
    router.Submit(5, request);
    ASSERT_TRUE(router.Wait([&] { return router.streams_[5].tokens.size() >= 20; }));
    router.Break();
    first = router.Get(5);
  }
  v1::Hello hello = Reattach(5, first.tokens.size());
  hello.add_reattach()->set_stream_id(77);  // never was
  engine.replica().Hold(false);
  TestRouter again(engine.Channel());
  again.Hello(hello);
  ASSERT_TRUE(again.WaitDone(5));
  const Received rest = again.Get(5);
  ASSERT_EQ(again.welcome_.lost_stream_ids_size(), 1);
  EXPECT_EQ(again.welcome_.lost_stream_ids(0), 77u);
  std::vector<int32_t> all = first.tokens;
  all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(all, FakeGreedy(prompt, 400));
  EXPECT_EQ(first.text + rest.text, engine.tokenizer().Decode(all, true));
  EXPECT_EQ(first.logprobs.size() + rest.logprobs.size(), 400u);
  EXPECT_EQ(rest.last.usage().completion_tokens(), 400);
}

TEST(EngineConnect, AFinishedStreamCanBeAskedForAgain) {
  FakeEngine engine;
  v1::GenerateRequest request = TokenRequest(Prompt(4, 20), 12);
  request.mutable_output()->set_prompt_logprobs(0);
  {
    TestRouter router(engine.Channel());
    router.Hello(TestRouter::MakeHello());
    router.Submit(1, request);
    ASSERT_TRUE(router.WaitDone(1));
  }
  TestRouter again(engine.Channel());
  again.Hello(Reattach(1, 5, 7));
  ASSERT_TRUE(again.WaitDone(1));
  const std::vector<int32_t> all = FakeGreedy(Prompt(4, 20), 12);
  EXPECT_EQ(again.Get(1).tokens, std::vector<int32_t>(all.begin() + 5, all.end()));
  EXPECT_EQ(again.Get(1).prompt_logprobs.size(), 12u);  // of 19
}

TEST(EngineConnect, AnEmbeddingIsOneDeltaAndCanBeAskedForAgain) {
  FakeEngine engine;
  const std::vector<int32_t> prompt = Prompt(4, 300);
  v1::RouterFrame frame;
  v1::Submit* submit = frame.mutable_submit();
  submit->set_stream_id(1);
  submit->mutable_request()->mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  submit->mutable_embed()->set_pooling(v1::EmbedRequest::POOLING_MEAN);
  const auto embedding = [](const Received& got) {
    return std::vector<float>(got.last.embedding().begin(), got.last.embedding().end());
  };
  {
    TestRouter router(engine.Channel());
    router.Hello(TestRouter::MakeHello());
    router.Send(frame);
    ASSERT_TRUE(router.WaitDone(1));
    EXPECT_EQ(embedding(router.Get(1)), FakeEmbedding(prompt, true));
    EXPECT_TRUE(router.Get(1).tokens.empty());
    EXPECT_EQ(router.Get(1).last.usage().prompt_tokens(), 300);
    submit->set_stream_id(2);
    submit->mutable_request()->mutable_sampling();
    router.Send(frame);
    ASSERT_TRUE(router.WaitDone(2));
    EXPECT_EQ(router.Get(2).last.error().field(), "sampling");
  }
  TestRouter again(engine.Channel());
  again.Hello(Reattach(1, 0));
  ASSERT_TRUE(again.WaitDone(1));
  EXPECT_EQ(embedding(again.Get(1)), FakeEmbedding(prompt, true));
}

TEST(EngineConnect, ARouterThatStaysAwayLosesItsRequests) {
  FakeEngineOptions options;
  options.engine.channel.reattach_ns = 30 * kNsPerMs;
  FakeEngine engine(std::move(options));
  {
    TestRouter router(engine.Channel());
    router.Hello(TestRouter::MakeHello());
    engine.replica().HoldAfter(10);
    router.Submit(1, TokenRequest(Prompt(1, 10), 1900));
    ASSERT_TRUE(router.Wait([&] { return !router.streams_[1].tokens.empty(); }));
  }
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond));
  TestRouter again(engine.Channel());
  again.Hello(Reattach(1, 1));
  ASSERT_TRUE(again.Wait([&] { return again.welcomed_; }));
  EXPECT_EQ(again.welcome_.lost_stream_ids_size(), 1);
}

TEST(EngineConnect, StreamsNotNamedAtReattachAreAborted) {
  FakeEngine engine;
  {
    TestRouter router(engine.Channel());
    router.Hello(TestRouter::MakeHello());
    engine.replica().HoldAfter(10);
    router.Submit(1, TokenRequest(Prompt(1, 10), 1900));
    ASSERT_TRUE(router.Wait([&] { return !router.streams_[1].tokens.empty(); }));
  }
  TestRouter again(engine.Channel());
  again.Hello(TestRouter::MakeHello());
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 10 * kNsPerSecond));
  engine.replica().Hold(false);
  again.Submit(1, TokenRequest(Prompt(2, 10), 5));  // the number is free again
  ASSERT_TRUE(again.WaitDone(1));
  EXPECT_EQ(again.Get(1).tokens, FakeGreedy(Prompt(2, 10), 5));
}

TEST(EngineConnect, ARouterThatDoesNotReadIsDropped) {
  FakeEngineOptions options;
  options.engine.channel.max_unsent_bytes = 20'000;
  options.replica.num_pages = 4096;
  FakeEngine engine(std::move(options));
  TestRouter slow(engine.Channel());
  slow.Hello(TestRouter::MakeHello("slow"), /*reading=*/false);
  TestRouter other(engine.Channel());
  other.Hello(TestRouter::MakeHello("other"));
  v1::GenerateRequest big = TokenRequest(Prompt(1, 10), 1900);
  big.mutable_output()->set_logprobs(20);
  engine.replica().Hold(true);
  for (uint64_t s = 1; s <= 20; ++s) slow.Submit(s, big);
  // Not for all twenty: the router may be dropped before the last one is in.
  while (engine.engine().front().live() == 0) std::this_thread::yield();
  engine.replica().Hold(false);
  // gRPC's own window takes some; the rest piles up until the router is dropped.
  ASSERT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 100 * kNsPerSecond));
  slow.StartReading();
  EXPECT_EQ(slow.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  other.Submit(1, TokenRequest(Prompt(2, 10), 5));
  ASSERT_TRUE(other.WaitDone(1));
  EXPECT_EQ(other.Get(1).tokens, FakeGreedy(Prompt(2, 10), 5));
}

TEST(EngineConnect, ResumeContinuesExactly) {
  FakeEngine engine;
  const std::vector<int32_t> all = FakeGreedy(Prompt(8, 30), 60);
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  v1::GenerateRequest request = TokenRequest(Prompt(8, 30), 60);
  request.mutable_output()->set_logprobs(0);
  router.Submit(1, request);
  router.Submit(2, request, std::vector<int32_t>(all.begin(), all.begin() + 25));
  ASSERT_TRUE(router.WaitDone(1) && router.WaitDone(2));
  const Received whole = router.Get(1), rest = router.Get(2);
  EXPECT_EQ(rest.tokens, std::vector<int32_t>(all.begin() + 25, all.end()));
  EXPECT_EQ(rest.last.usage().completion_tokens(), 60);
  EXPECT_EQ(rest.last.usage().prompt_tokens(), 30);
  EXPECT_TRUE(whole.text.ends_with(rest.text));
  for (size_t i = 0; i < rest.logprobs.size(); ++i)
    EXPECT_EQ(rest.logprobs[i].SerializeAsString(), whole.logprobs[i + 25].SerializeAsString());
}

TEST(EngineConnect, LargePromptLogprobsGoByFetch) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  v1::GenerateRequest request = TokenRequest(Prompt(8, 1500), 4);
  request.mutable_output()->set_prompt_logprobs(20);
  router.Submit(1, request);
  ASSERT_TRUE(router.WaitDone(1));
  const Received got = router.Get(1);
  EXPECT_TRUE(got.prompt_logprobs.empty());
  ASSERT_NE(got.last.large_result_id(), 0u);
  auto stub = v1::Engine::NewStub(engine.Channel());
  v1::FetchLargeResultRequest fetch;
  fetch.set_large_result_id(got.last.large_result_id());
  grpc::ClientContext c1, c2;
  auto reader = stub->FetchLargeResult(&c1, fetch);
  v1::GenerateResponse piece;
  std::vector<int32_t> tokens;
  int pieces = 0;
  while (reader->Read(&piece)) {
    ++pieces;
    EXPECT_LT(piece.ByteSizeLong(), 300'000u);
    for (const auto& entry : piece.prompt_logprobs()) tokens.push_back(entry.token_id());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_GT(pieces, 1);
  const std::vector<int32_t> prompt = Prompt(8, 1500);
  EXPECT_EQ(tokens, std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
  auto gone = stub->FetchLargeResult(&c2, fetch);
  EXPECT_FALSE(gone->Read(&piece));
  EXPECT_EQ(gone->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(EngineUnary, InfoLoadAndFiles) {
  FakeEngine engine;
  auto stub = v1::Engine::NewStub(engine.Channel());
  grpc::ClientContext c1, c2, c3, c4;
  v1::GetModelInfoResponse info;
  ASSERT_TRUE(stub->GetModelInfo(&c1, {}, &info).ok());
  EXPECT_EQ(info.vocab_size(), 512u);
  EXPECT_EQ(info.max_model_len(), 2048u);
  EXPECT_EQ(info.total_pages(), 256u);
  EXPECT_EQ(info.backend(), "fake-backend");
  v1::Load load;
  ASSERT_TRUE(stub->GetLoad(&c2, {}, &load).ok());
  EXPECT_EQ(load.total_pages(), 256u);
  EXPECT_EQ(load.free_pages(), 256u);
  ASSERT_EQ(info.files_size(), 1);
  v1::FetchModelFileRequest fetch;
  fetch.set_sha256(info.files(0).sha256());
  auto reader = stub->FetchModelFile(&c3, fetch);
  v1::FileChunk chunk;
  std::string file;
  while (reader->Read(&chunk)) {
    EXPECT_LE(chunk.data().size(), 256u << 10);
    file += chunk.data();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(file.size(), info.files(0).bytes());
  EXPECT_EQ(Sha256Hex(file), fetch.sha256());
  fetch.set_sha256("no such");
  auto none = stub->FetchModelFile(&c4, fetch);
  EXPECT_FALSE(none->Read(&chunk));
  EXPECT_EQ(none->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(EngineDrain, FinishesWhatRunsAndTakesNothingNew) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  engine.replica().Hold(true);
  router.Submit(1, TokenRequest(Prompt(1, 10), 50));
  ASSERT_TRUE(router.Wait([&] { return router.welcomed_; }));
  auto stub = v1::Engine::NewStub(engine.Channel());
  v1::DrainResponse response;
  while (response.running_requests() == 0) {  // until the submit has arrived
    v1::Load load;
    grpc::ClientContext context;
    ASSERT_TRUE(stub->GetLoad(&context, {}, &load).ok());
    response.set_running_requests(load.running_requests() + load.waiting_requests());
  }
  grpc::ClientContext context;
  ASSERT_TRUE(stub->Drain(&context, {}, &response).ok());
  EXPECT_EQ(response.running_requests(), 1u);
  EXPECT_TRUE(router.Wait([&] { return router.goodbye_; }));
  router.Submit(2, TokenRequest(Prompt(1, 10), 50));
  ASSERT_TRUE(router.WaitDone(2));
  EXPECT_EQ(router.Get(2).last.error().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GT(router.Get(2).last.error().retry_after_ms(), 0);
  // A router that lost its connection meanwhile comes back for what runs.
  router.Break();
  TestRouter again(engine.Channel());
  v1::Hello hello = TestRouter::MakeHello();
  hello.add_reattach()->set_stream_id(1);
  again.Hello(hello);
  ASSERT_TRUE(again.Wait([&] { return again.welcomed_; }));
  engine.replica().Hold(false);
  ASSERT_TRUE(again.WaitDone(1));
  EXPECT_EQ(again.Get(1).tokens, FakeGreedy(Prompt(1, 10), 50));
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 10 * kNsPerSecond));
}

}  // namespace
}  // namespace flotilla
