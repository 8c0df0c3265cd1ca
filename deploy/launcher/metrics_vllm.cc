#include "deploy/launcher/metrics_vllm.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace flotilla {
namespace {

constexpr std::string_view kSchedulerPrefix = "flotilla_scheduler_";

using Name = std::pair<std::string_view, std::string_view>;  // ours, vLLM's
constexpr Name kFamilies[] = {
    {"requests_running", "num_requests_running"},
    {"requests_waiting", "num_requests_waiting"},
    {"kv_cache_usage_ratio", "kv_cache_usage_perc"},
    {"kv_cache_usage_ratio", "gpu_cache_usage_perc"},  // until vLLM 0.9
    {"cache_config_info", "cache_config_info"},
    {"prompt_tokens_total", "prompt_tokens_total"},
    {"generation_tokens_total", "generation_tokens_total"},
    {"prefix_cache_queries_total", "prefix_cache_queries_total"},
    {"prefix_cache_hits_total", "prefix_cache_hits_total"},
    {"retractions_total", "num_preemptions_total"},
    {"spec_decode_draft_tokens_total", "spec_decode_num_draft_tokens_total"},
    {"spec_decode_accepted_tokens_total", "spec_decode_num_accepted_tokens_total"},
    {"request_success_total", "request_success_total"},
    {"time_to_first_token_seconds", "time_to_first_token_seconds"},
    {"inter_token_latency_seconds", "inter_token_latency_seconds"},
    {"inter_token_latency_seconds", "time_per_output_token_seconds"},  // until vLLM 0.10
    {"e2e_request_latency_seconds", "e2e_request_latency_seconds"},
    {"request_queue_time_seconds", "request_queue_time_seconds"},
    {"request_prefill_time_seconds", "request_prefill_time_seconds"},
    {"request_decode_time_seconds", "request_decode_time_seconds"},
    {"request_prompt_tokens", "request_prompt_tokens"},
    {"request_generation_tokens", "request_generation_tokens"},
    // The longest choice of a request; ours counts each, so the same where n is 1.
    {"request_generation_tokens", "request_max_num_generation_tokens"},
    {"batch_tokens", "iteration_tokens_total"},
};
constexpr Name kLabels[] = {{"model", "model_name"},
                            {"replica", "engine"},
                            {"num_pages", "num_gpu_blocks"},
                            {"page_size", "block_size"}};

std::string_view VllmLabel(std::string_view name) {
  for (const auto& [ours, vllm] : kLabels) {
    if (name == ours) return vllm;
  }
  return name;
}

// `{a="x",b="y"} 1` with the labels' names replaced; text in quotes stays.
std::string RenameLabels(std::string_view rest) {
  std::string out;
  size_t name_begin = 0;  // in `out`
  bool quoted = false;
  for (size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (quoted && c == '\\') {
      out.push_back(c);
      if (++i == rest.size()) break;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && c == '=') {
      const std::string_view name = VllmLabel(std::string_view(out).substr(name_begin));
      out = out.substr(0, name_begin) + std::string(name);
    }
    out.push_back(rest[i]);
    if (!quoted && (c == '{' || c == ',')) name_begin = out.size();
  }
  return out;
}

// What follows the family's name in a sample, HELP or TYPE line of it, and what goes before the
// name; false: the line is another family's.
bool Match(std::string_view line, std::string_view family, std::string_view* comment,
           std::string_view* rest) {
  *comment = {};
  for (const std::string_view head : {"# HELP ", "# TYPE "}) {
    if (line.starts_with(head)) *comment = head;
  }
  line.remove_prefix(comment->size());
  if (!line.starts_with(kSchedulerPrefix)) return false;
  line.remove_prefix(kSchedulerPrefix.size());
  if (!line.starts_with(family)) return false;
  *rest = line.substr(family.size());
  if (!comment->empty()) return rest->starts_with(' ');
  static constexpr std::string_view kSuffixes[] = {"", "_bucket", "_sum", "_count"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes), [&](std::string_view suffix) {
    if (!rest->starts_with(suffix)) return false;
    const std::string_view after = rest->substr(suffix.size());
    return after.starts_with('{') || after.starts_with(' ');
  });
}

}  // namespace

std::string RenderVllmNames(std::string_view page) {
  std::string out;
  for (const auto& [ours, vllm] : kFamilies) {
    for (size_t at = 0; at < page.size();) {
      const size_t end = std::min(page.find('\n', at), page.size());
      std::string_view comment, rest;
      if (Match(page.substr(at, end - at), ours, &comment, &rest)) {
        out.append(comment).append("vllm:").append(vllm);
        if (comment.empty())
          out.append(RenameLabels(rest));
        else
          out.append(rest);
        out.push_back('\n');
      }
      at = end + 1;
    }
  }
  return out;
}

}  // namespace flotilla
