#include "deploy/launcher/metrics_vllm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsVllmTest, NamesAndLabels) {
  EXPECT_EQ(RenderVllmNames("# HELP flotilla_scheduler_requests_running Rs.\n"
                            "# TYPE flotilla_scheduler_requests_running gauge\n"
                            "flotilla_scheduler_requests_running{model=\"m\",replica=\"r0\"} 3\n"),
            "# HELP vllm:num_requests_running Rs.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            "vllm:num_requests_running{model_name=\"m\",engine=\"r0\"} 3\n");
}

TEST(MetricsVllmTest, AHistogramKeepsItsSamples) {
  const std::string page = RenderVllmNames(
      "# TYPE flotilla_scheduler_inter_token_latency_seconds histogram\n"
      "flotilla_scheduler_inter_token_latency_seconds_bucket{le=\"+Inf\"} 2\n"
      "flotilla_scheduler_inter_token_latency_seconds_sum 0.5\n"
      "flotilla_scheduler_inter_token_latency_seconds_count 2\n");
  for (const std::string name : {"inter_token_latency_seconds", "time_per_output_token_seconds"}) {
    EXPECT_THAT(page, HasSubstr("# TYPE vllm:" + name + " histogram\nvllm:" + name +
                                "_bucket{le=\"+Inf\"} 2\nvllm:" + name + "_sum 0.5\nvllm:" + name +
                                "_count 2\n"));
  }
}

TEST(MetricsVllmTest, OnlyWholeNamesOfTheSchedulers) {
  EXPECT_EQ(RenderVllmNames("flotilla_router_requests_total 1\n"
                            "flotilla_scheduler_requests_running_x 1\n"
                            "flotilla_scheduler_serving 1\n"
                            "# HELP flotilla_scheduler_request_prompt_tokens_x Xs.\n"
                            "# flotilla_scheduler_requests_running 1\n"),
            "");
}

TEST(MetricsVllmTest, ValuesMayLookLikeLabels) {
  const std::string page = RenderVllmNames(
      "flotilla_scheduler_cache_config_info{model=\"a,model=\\\"b\\\\\",num_pages=\"12\","
      "page_size=\"16\"} 1\n");
  EXPECT_EQ(page,
            "vllm:cache_config_info{model_name=\"a,model=\\\"b\\\\\",num_gpu_blocks=\"12\","
            "block_size=\"16\"} 1\n");
  EXPECT_THAT(page, Not(HasSubstr("flotilla")));
}

}  // namespace
}  // namespace flotilla
