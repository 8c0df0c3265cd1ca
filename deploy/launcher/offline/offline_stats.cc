#include "deploy/launcher/offline/offline_stats.h"

#include <algorithm>

#include "deploy/launcher/workload/nearest_rank.h"

namespace flotilla {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

boost::json::object Spread(const std::vector<int64_t>& ns) {
  return {{"p50", Seconds(NearestRank(ns, 0.5))}, {"p99", Seconds(NearestRank(ns, 0.99))}};
}

}  // namespace

void OfflineStats::OnTokens(size_t request, uint32_t count, int64_t now_ns) {
  if (count == 0) return;
  Request& r = requests_[request];
  if (r.tokens == 0) {
    ttft_ns_.push_back(now_ns - start_ns_);
    max_running_ = std::max(max_running_, ++running_);
  } else {
    gaps_ns_.insert(gaps_ns_.end(), count, (now_ns - r.last_ns) / count);
  }
  r.tokens += count;
  r.last_ns = now_ns;
  output_tokens_ += count;
}

void OfflineStats::OnEnd(uint32_t prompt_tokens, uint32_t cached_tokens, int64_t now_ns) {
  ++finished_;
  if (running_ > 0) --running_;
  prompt_tokens_ += prompt_tokens;
  cached_tokens_ += cached_tokens;
  end_ns_ = now_ns;
}

void OfflineStats::OnLoad(uint32_t running_requests, uint64_t free_pages, uint64_t total_pages) {
  max_running_ = std::max(max_running_, running_requests);
  if (total_pages == 0) return;
  const double used = static_cast<double>(total_pages - std::min(free_pages, total_pages));
  max_kv_usage_ = std::max(max_kv_usage_, used / static_cast<double>(total_pages));
}

boost::json::object OfflineStats::Figures() const {
  const double seconds = end_ns_ > start_ns_ ? Seconds(end_ns_ - start_ns_) : 0;
  const auto rate = [&](uint64_t tokens) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  return {{"requests", finished_},
          {"prompt_tokens", prompt_tokens_},
          {"output_tokens", output_tokens_},
          {"seconds", seconds},
          {"output_tokens_per_second", rate(output_tokens_)},
          {"total_tokens_per_second", rate(prompt_tokens_ + output_tokens_)},
          {"time_to_first_token_seconds", Spread(ttft_ns_)},
          {"inter_token_latency_seconds", Spread(gaps_ns_)},
          {"max_running_requests", max_running_},
          {"max_kv_usage",
           max_kv_usage_ > 0 ? boost::json::value(max_kv_usage_) : boost::json::value()},
          {"cached_tokens", cached_tokens_}};
}

}  // namespace flotilla
