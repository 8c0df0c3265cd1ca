// The schedulers' metrics under vLLM's names and labels, so that dashboards, autoscaling rules and
// the Gateway API's inference extension written for vLLM work unchanged.
//
// Threads: any (pure). Source: https://docs.vllm.ai/en/latest/usage/metrics.html, v1 engine; the
// two names that it has since replaced are there as well.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// `page`: ours, merged (MetricsMerger::Render). Families without a counterpart are left out.
std::string RenderVllmNames(std::string_view page);

}  // namespace flotilla
