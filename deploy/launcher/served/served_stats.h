// What came of a run of `flotilla bench serve`: each request's times, and the figures made of them.
//
// Units: nanoseconds of one clock, tokens; what is printed is in milliseconds and seconds. Pure.
// The names are those of vLLM's `vllm bench serve`: TTFT from sending a request to its first text,
// ITL between two pieces of text, TPOT the mean of a request's tokens behind the first, E2EL to the
// end.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct ServedRequest {
  int64_t sent_ns = 0, first_ns = 0, last_ns = 0, end_ns = 0;
  std::vector<int64_t> gaps_ns;  // between pieces
  uint32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string error;  // empty: it was answered to its end

  bool ok() const { return error.empty(); }
  int64_t ttft_ns() const { return first_ns - sent_ns; }
  int64_t e2el_ns() const { return end_ns - sent_ns; }
  // 0 of an answer of one token.
  int64_t tpot_ns() const;
};

// What a request must keep to count as good, in milliseconds; nullopt: anything.
struct Slo {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
  bool Keeps(const ServedRequest& request) const;
};
// "ttft:500,tpot:50". Error: InvalidArgument.
StatusOr<Slo> ParseSlo(std::string_view text);

struct ServedLoad {
  double request_rate = 0;       // a second; 0: as fast as max_concurrency lets them go
  uint32_t max_concurrency = 0;  // 0: no limit
};

// Flat, so that a line a run can be drawn (tests/bench/plots.py --load). Latencies that no request
// has are null.
boost::json::object ServedFigures(const std::vector<ServedRequest>& requests,
                                  const ServedLoad& load, const Slo& slo);

// The same for people.
std::string ServedTable(const boost::json::object& figures);

}  // namespace flotilla
