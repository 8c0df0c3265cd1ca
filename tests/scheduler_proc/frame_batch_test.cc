// Several frames of a router in one message, from protocol 2 on.
#include <gtest/gtest.h>

#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

std::vector<int32_t> Greedy(const std::vector<int32_t>& prompt, uint32_t max_tokens) {
  SamplingParams greedy;
  greedy.temperature = 0;
  return FakeGenerate(FakeModel{}, prompt, greedy, max_tokens);
}

v1::RouterFrame SubmitFrame(uint64_t stream, const v1::GenerateRequest& request) {
  v1::RouterFrame frame;
  frame.mutable_submit()->set_stream_id(stream);
  *frame.mutable_submit()->mutable_request() = request;
  return frame;
}

TEST(EngineBatch, IsTakenFrameByFrame) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  v1::Hello hello = TestRouter::MakeHello();
  hello.set_protocol_max(2);
  router.Hello(hello);
  v1::RouterFrame batch;
  for (uint64_t s = 1; s <= 3; ++s)
    *batch.mutable_batch()->add_frames() =
        SubmitFrame(s, TokenRequest(Prompt(static_cast<uint32_t>(s), 40), s == 3 ? 400 : 5));
  v1::RouterFrame* abort = batch.mutable_batch()->add_frames();
  abort->mutable_abort()->set_stream_id(3);
  abort->mutable_abort()->set_reason(v1::FINISH_REASON_ABORT);
  router.Send(batch);
  for (uint64_t s = 1; s <= 3; ++s) ASSERT_TRUE(router.WaitDone(s)) << s;
  EXPECT_EQ(router.welcome_.protocol(), 2u);
  for (uint32_t s = 1; s <= 2; ++s) EXPECT_EQ(router.Get(s).tokens, Greedy(Prompt(s, 40), 5));
  EXPECT_EQ(router.Get(3).last.choices(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_TRUE(router.Wait([&] { return router.submits_ == 3; }));

  // Whatever is wrong in one ends the connection, as alone.
  v1::RouterFrame nested;
  *nested.mutable_batch()->add_frames()->mutable_batch() = batch.batch();
  router.Send(nested);
  EXPECT_EQ(router.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace flotilla
