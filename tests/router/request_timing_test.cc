#include "router/observe/request_timing.h"

#include <gtest/gtest.h>

#include "boost/json.hpp"

namespace flotilla {
namespace {

TEST(RequestTimingTest, StagesAddUpToTheWholeWhicheverTheClocks) {
  v1::Timing timing;
  timing.set_arrival_ns(7'000'000'000);  // the engine's clock is seconds ahead
  timing.set_queued_ns(7'000'200'000);
  timing.set_first_scheduled_ns(7'010'200'000);
  timing.set_first_token_ns(7'110'200'000);
  timing.set_finished_ns(8'110'200'000);
  timing.set_wait_reason("kv_pages");
  const auto json =
      boost::json::parse(TimingJson(timing, 1'000'000'000, 2'112'200'000)).as_object();
  const auto of = [&](const char* stage) { return json.at(stage).to_number<double>(); };
  EXPECT_NEAR(of("total_seconds"), 1.1122, 1e-9);
  EXPECT_NEAR(of("engine_seconds"), 0.0002, 1e-9);
  EXPECT_NEAR(of("queue_seconds"), 0.01, 1e-9);
  EXPECT_NEAR(of("prefill_seconds"), 0.1, 1e-9);
  EXPECT_NEAR(of("decode_seconds"), 1, 1e-9);
  EXPECT_NEAR(of("router_seconds"), 0.002, 1e-9);
  EXPECT_EQ(json.at("wait_reason").as_string(), "kv_pages");
}

}  // namespace
}  // namespace flotilla
