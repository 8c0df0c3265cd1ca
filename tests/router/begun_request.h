// Requests that replicas lose or refuse after they have begun: what the router's tests of that
// share.
#pragma once

#include <future>
#include <string>

#include "tests/router/router_harness.h"

namespace flotilla {

inline constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1,"stream":true})";
inline constexpr const char* kPlain = R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1})";

inline HarnessOptions Replicas(size_t count) {
  HarnessOptions options;
  options.replicas = count;
  return options;
}

inline std::string ExpectedText(FakeEngineService& engine) {
  return GetTestModel().tokenizer->Decode(engine.AnswerIds(engine.submits()[0].request()), true);
}

// A request that the first engine has, and of which it has sent `pieces`; the router has taken one
// at least, if there are any.
struct Begun {
  Begun(RouterHarness* harness, const char* body, int pieces, size_t choices = 1) {
    harness->engine(0).Hold();
    answer = std::async(std::launch::async, [=] { return harness->Complete(body); });
    EXPECT_TRUE(harness->engine(0).WaitForSubmits(choices));
    if (pieces == 0) return;
    harness->engine(0).Release(pieces);
    FakeEngineService& engine = harness->engine(0);
    EXPECT_TRUE(engine.WaitFor([&] { return engine.permits() == 0; }));
    EXPECT_TRUE(harness->WaitForMetric("flotilla_router_ttft_seconds_count", 1));
  }
  std::future<HttpAnswer> answer;
};

}  // namespace flotilla
