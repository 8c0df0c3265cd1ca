// Several frames of a router in one message, from protocol 2 on.
#include <gtest/gtest.h>

#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"

namespace flotilla {
namespace {

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
  *batch.mutable_batch()->add_frames() = AbortFrame(3);
  router.Send(batch);
  for (uint64_t s = 1; s <= 3; ++s) ASSERT_TRUE(router.WaitDone(s)) << s;
  EXPECT_EQ(router.welcome_.protocol(), 2u);
  for (uint32_t s = 1; s <= 2; ++s) EXPECT_EQ(router.Get(s).tokens, FakeGreedy(Prompt(s, 40), 5));
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
