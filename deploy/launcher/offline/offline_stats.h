// What came of an offline run: when each request's tokens came, and the figures made of that.
//
// Units: nanoseconds of one clock, tokens. Pure. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "boost/json/object.hpp"

namespace flotilla {

class OfflineStats {
 public:
  OfflineStats(size_t requests, int64_t start_ns) : start_ns_(start_ns), requests_(requests) {}

  // `count` tokens of a request came together: the time since its last ones is shared among them.
  void OnTokens(size_t request, uint32_t count, int64_t now_ns);
  void OnEnd(uint32_t prompt_tokens, uint32_t cached_tokens, int64_t now_ns);
  void OnLoad(uint32_t running_requests, uint64_t free_pages, uint64_t total_pages);

  size_t finished() const { return finished_; }
  uint64_t output_tokens() const { return output_tokens_; }
  uint32_t tokens_of(size_t request) const { return requests_[request].tokens; }

  // What is printed, in seconds and tokens.
  boost::json::object Figures() const;

 private:
  struct Request {
    uint32_t tokens = 0;
    int64_t last_ns = 0;
  };
  const int64_t start_ns_;
  int64_t end_ns_ = 0;
  std::vector<Request> requests_;
  std::vector<int64_t> ttft_ns_, gaps_ns_;
  size_t finished_ = 0;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, output_tokens_ = 0;
  uint32_t running_ = 0;      // have begun and not ended
  uint32_t max_running_ = 0;  // of them, or as the engine said
  // Of all pages; 0: short requests can begin and end between two reports of the engine's.
  double max_kv_usage_ = 0;
};

}  // namespace flotilla
