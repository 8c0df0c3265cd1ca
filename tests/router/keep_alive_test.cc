// Comments on streams that wait.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

TEST(KeepAliveTest, AStreamThatWaitsGetsComments) {
  HarnessOptions options;
  options.sse_keepalive_ms = 1;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions",
                           R"({"model":"smol","prompt":"Hi","stream":true,"max_tokens":2})"));
  EXPECT_NE(connection.ReadUntil(": keep-alive\n\n").find("text/event-stream"), std::string::npos);
  connection.ReadUntil(": keep-alive\n\n");
  harness.engine().RunFreely();
  EXPECT_FALSE(connection.ReadUntil("[DONE]").empty());
}

TEST(KeepAliveTest, AnAnswerThatIsNoStreamGetsNone) {
  HarnessOptions options;
  options.sse_keepalive_ms = 1;
  RouterHarness harness(options);
  const HttpAnswer answer = harness.Complete(R"({"model":"smol","prompt":"Hi","max_tokens":50})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.find("keep-alive"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
