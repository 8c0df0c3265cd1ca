// Requests with an idempotency key on a real engine (toy model): two routers' view.
#include <gtest/gtest.h>

#include "common/text/incremental_detokenizer.h"
#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

v1::RouterFrame KeyedSubmit(uint64_t stream, const v1::GenerateRequest& request, char key = 'k') {
  v1::RouterFrame frame;
  v1::Submit* submit = frame.mutable_submit();
  submit->set_stream_id(stream);
  *submit->mutable_request() = request;
  submit->mutable_keyed()->set_key(std::string(64, key));
  submit->mutable_keyed()->set_digest(std::string(64, 'd'));
  return frame;
}

v1::RouterFrame Detach(uint64_t stream) {
  v1::RouterFrame frame;
  frame.mutable_abort()->set_stream_id(stream);
  frame.mutable_abort()->set_detach(true);
  return frame;
}

class KeyedSubmitTest : public testing::Test {
 protected:
  void Start(FakeEngineOptions options = {}) {
    engine_ = std::make_unique<FakeEngine>(std::move(options));
    for (const char* id : {"router-a", "router-b"}) {
      routers_.push_back(std::make_unique<TestRouter>(engine_->Channel()));
      routers_.back()->Hello(TestRouter::MakeHello(id));
    }
  }
  void TearDown() override { routers_.clear(); }
  bool Find(char key) {
    auto stub = v1::Engine::NewStub(engine_->Channel());
    grpc::ClientContext context;
    v1::FindKeyedRequest request;
    request.set_key(std::string(64, key));
    v1::FindKeyedResponse response;
    EXPECT_TRUE(stub->FindKeyed(&context, request, &response).ok());
    return response.found();
  }
  bool HasSome(TestRouter* router, uint64_t stream) {
    return router->Wait([&] { return router->streams_[stream].tokens.size() > 3; });
  }
  // As it is passed on while more may come.
  std::string TextOf(const std::vector<int32_t>& ids) {
    IncrementalDetokenizer detokenizer(&engine_->tokenizer(), /*skip_special=*/true);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.Push(id);
    return text;
  }
  bool WaitIdle() { return engine_->engine().WaitIdle(RealClock::Now() + 20 * kNsPerSecond); }

  std::unique_ptr<FakeEngine> engine_;
  std::vector<std::unique_ptr<TestRouter>> routers_;
};

TEST_F(KeyedSubmitTest, BothRoutersGetTheOneRequest) {
  Start();
  EXPECT_FALSE(Find('k'));
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 300);
  engine_->replica().HoldAfter(10);
  routers_[0]->Send(KeyedSubmit(1, request));
  ASSERT_TRUE(HasSome(routers_[0].get(), 1));
  EXPECT_TRUE(Find('k'));
  routers_[1]->Send(KeyedSubmit(5, request));
  ASSERT_TRUE(HasSome(routers_[1].get(), 5)) << "what there is";
  EXPECT_EQ(engine_->engine().front().live(), 1u);
  engine_->replica().Hold(false);
  ASSERT_TRUE(routers_[0]->WaitDone(1));
  ASSERT_TRUE(routers_[1]->WaitDone(5));
  const Received first = routers_[0]->Get(1), second = routers_[1]->Get(5);
  EXPECT_EQ(first.tokens.size(), 300u);
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.text, first.text);
  EXPECT_EQ(second.last.usage().completion_tokens(), 300);

  routers_[1]->Send(KeyedSubmit(6, request));
  ASSERT_TRUE(routers_[1]->WaitDone(6));
  EXPECT_EQ(routers_[1]->Get(6).text, first.text);
  EXPECT_FALSE(first.last.repeats());
  EXPECT_TRUE(second.last.repeats());
  EXPECT_TRUE(routers_[1]->Get(6).last.repeats());
  EXPECT_EQ(routers_[1]->Get(6).last.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(KeyedSubmitTest, ItGoesOnWhenItsRouterLeaves) {
  FakeEngineOptions options;
  options.engine.channel.reattach_ns = 30 * kNsPerMs;
  Start(std::move(options));
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 300);
  engine_->replica().HoldAfter(10);
  routers_[0]->Send(KeyedSubmit(1, request));
  routers_[0]->Submit(2, TokenRequest(Prompt(2, 10), 300));
  ASSERT_TRUE(HasSome(routers_[0].get(), 1));
  routers_[0]->Break();
  // The one without a key ends once the router can't come back.
  while (engine_->engine().front().live() > 1) {
  }
  engine_->replica().Hold(false);
  EXPECT_TRUE(WaitIdle());
  routers_[1]->Send(KeyedSubmit(1, request));
  ASSERT_TRUE(routers_[1]->WaitDone(1));
  EXPECT_EQ(routers_[1]->Get(1).tokens.size(), 300u);
}

TEST_F(KeyedSubmitTest, DetachedItGoesOnAndIsNotTold) {
  Start();
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 300);
  engine_->replica().HoldAfter(10);
  routers_[0]->Send(KeyedSubmit(1, request));
  routers_[0]->Submit(2, TokenRequest(Prompt(2, 10), 300));
  ASSERT_TRUE(HasSome(routers_[0].get(), 1));
  routers_[0]->Send(Detach(1));
  routers_[0]->Send(Detach(2));  // without a key: as an abort
  while (engine_->engine().front().live() > 1) {
  }
  engine_->replica().Hold(false);
  EXPECT_TRUE(WaitIdle());
  EXPECT_TRUE(Find('k'));
  routers_[0]->Submit(3, TokenRequest(Prompt(3, 10), 5));
  ASSERT_TRUE(routers_[0]->WaitDone(3));
  EXPECT_FALSE(routers_[0]->Get(1).done);
}

TEST_F(KeyedSubmitTest, AbortEndsItForAll) {
  Start();
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 300);
  engine_->replica().HoldAfter(10);
  routers_[0]->Send(KeyedSubmit(1, request));
  ASSERT_TRUE(HasSome(routers_[0].get(), 1));
  routers_[1]->Send(KeyedSubmit(1, request));
  ASSERT_TRUE(HasSome(routers_[1].get(), 1));
  routers_[1]->Abort(1);
  for (const auto& router : routers_) {
    ASSERT_TRUE(router->WaitDone(1));
    EXPECT_EQ(router->Get(1).last.choices(0).finish_reason(), v1::FINISH_REASON_ABORT);
  }
  EXPECT_TRUE(WaitIdle());
  EXPECT_FALSE(Find('k'));
}

TEST_F(KeyedSubmitTest, WhatIsRefusedIsNotKept) {
  Start();
  v1::GenerateRequest bad = TokenRequest(Prompt(1, 10), 10);
  bad.mutable_sampling()->set_top_p(1.5f);
  routers_[0]->Send(KeyedSubmit(1, bad));
  ASSERT_TRUE(routers_[0]->WaitDone(1));
  EXPECT_EQ(routers_[0]->Get(1).last.error().field(), "sampling.top_p");
  EXPECT_FALSE(Find('k'));
  v1::RouterFrame other = KeyedSubmit(2, TokenRequest(Prompt(1, 10), 10));
  routers_[0]->Send(other);
  ASSERT_TRUE(routers_[0]->WaitDone(2));
  other.mutable_submit()->set_stream_id(3);
  other.mutable_submit()->mutable_keyed()->set_digest(std::string(64, 'e'));
  routers_[0]->Send(other);
  ASSERT_TRUE(routers_[0]->WaitDone(3));
  EXPECT_EQ(routers_[0]->Get(3).last.error().field(), "idempotency_key");
  EXPECT_EQ(routers_[0]->Get(3).last.error().code(), 6);
}

// It went on from token 20 elsewhere: all are given the same, whatever they have of it.
TEST_F(KeyedSubmitTest, OneThatWasResumedIsGivenToAll) {
  Start();
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 60);
  routers_[0]->Submit(1, request);
  ASSERT_TRUE(routers_[0]->WaitDone(1));
  const Received all = routers_[0]->Get(1);
  const auto resumed = [&](uint64_t stream, int tokens) {
    v1::RouterFrame frame = KeyedSubmit(stream, request);
    v1::ResumeChoice* resume = frame.mutable_submit()->add_resume();
    resume->mutable_output_ids()->Add(all.tokens.begin(), all.tokens.begin() + tokens);
    resume->set_emitted_bytes(TextOf({all.tokens.begin(), all.tokens.begin() + tokens}).size());
    return frame;
  };
  const auto expect_rest = [&](TestRouter* router, uint64_t stream, int tokens) {
    ASSERT_TRUE(router->WaitDone(stream));
    const Received got = router->Get(stream);
    EXPECT_EQ(got.tokens, std::vector<int32_t>(all.tokens.begin() + tokens, all.tokens.end()));
    EXPECT_EQ(TextOf({all.tokens.begin(), all.tokens.begin() + tokens}) + got.text, all.text);
  };
  engine_->replica().HoldAfter(5);
  routers_[0]->Send(resumed(2, 20));
  ASSERT_TRUE(HasSome(routers_[0].get(), 2));
  routers_[1]->Send(KeyedSubmit(3, request));
  routers_[1]->Send(resumed(4, 7));
  routers_[1]->Send(resumed(5, 50));  // more than there is yet
  ASSERT_TRUE(HasSome(routers_[1].get(), 3));
  EXPECT_EQ(engine_->engine().front().live(), 1u);
  engine_->replica().Hold(false);
  expect_rest(routers_[0].get(), 2, 20);
  expect_rest(routers_[1].get(), 3, 0);
  expect_rest(routers_[1].get(), 4, 7);
  expect_rest(routers_[1].get(), 5, 50);
  routers_[1]->Send(KeyedSubmit(6, request));
  expect_rest(routers_[1].get(), 6, 0);
  EXPECT_TRUE(routers_[1]->Get(6).last.repeats()) << "computed once";
}

// What a resume does not tell can't be given again.
TEST_F(KeyedSubmitTest, OneThatWasResumedWithLogprobsBeginsAnewForOthers) {
  Start();
  v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 30);
  request.mutable_output()->set_logprobs(0);
  routers_[0]->Submit(1, request);
  ASSERT_TRUE(routers_[0]->WaitDone(1));
  const std::vector<int32_t> all = routers_[0]->Get(1).tokens;
  v1::RouterFrame resumed = KeyedSubmit(2, request);
  resumed.mutable_submit()->add_resume()->mutable_output_ids()->Add(all.begin(), all.begin() + 9);
  routers_[0]->Send(resumed);
  ASSERT_TRUE(routers_[0]->WaitDone(2));
  routers_[1]->Send(KeyedSubmit(3, request));
  ASSERT_TRUE(routers_[1]->WaitDone(3));
  EXPECT_EQ(routers_[1]->Get(3).tokens, all);
  EXPECT_EQ(routers_[1]->Get(3).logprobs.size(), 30u);
  EXPECT_FALSE(routers_[1]->Get(3).last.repeats());
}

// It begins nothing new, but who asks again is given what it has begun.
TEST_F(KeyedSubmitTest, ADrainingReplicaIsAskedAgain) {
  Start();
  const v1::GenerateRequest request = TokenRequest(Prompt(1, 10), 300);
  engine_->replica().HoldAfter(10);
  routers_[0]->Send(KeyedSubmit(1, request));
  ASSERT_TRUE(HasSome(routers_[0].get(), 1));
  engine_->engine().front().SetDraining();
  EXPECT_TRUE(Find('k'));
  routers_[1]->Send(KeyedSubmit(2, request));
  v1::RouterFrame other = KeyedSubmit(3, request);
  other.mutable_submit()->mutable_keyed()->set_key(std::string(64, 'e'));
  routers_[1]->Send(other);
  ASSERT_TRUE(routers_[1]->WaitDone(3));
  EXPECT_EQ(routers_[1]->Get(3).last.error().code(), 14);
  other = KeyedSubmit(4, request);
  other.mutable_submit()->mutable_keyed()->set_digest(std::string(64, 'e'));
  routers_[1]->Send(other);
  ASSERT_TRUE(routers_[1]->WaitDone(4));
  EXPECT_EQ(routers_[1]->Get(4).last.error().code(), 6) << "a key stands for one request";
  engine_->replica().Hold(false);
  for (const uint64_t i : {0, 1}) {
    ASSERT_TRUE(routers_[i]->WaitDone(i + 1));
    EXPECT_EQ(routers_[i]->Get(i + 1).tokens.size(), 300u);
  }
}

}  // namespace
}  // namespace flotilla
