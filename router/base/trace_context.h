// W3C's trace context: which trace a request belongs to, as the header `traceparent` says it
// (https://www.w3.org/TR/trace-context/, level 1).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla {

struct TraceContext {
  std::string trace_id;        // 32 hex digits
  std::string parent_span_id;  // 16; empty: the trace begins here
  bool sampled = true;         // who calls wants it recorded

  bool operator==(const TraceContext&) const = default;
};

// nullopt: it is none, and is passed over. Of a later version what version 00 has is read.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// 16 hex digits, not all zero.
std::string NewSpanId();

// What happens to a request with this header. Who calls has decided if there is one; else so many
// of all requests begin a trace. nullopt: it is not traced.
std::optional<TraceContext> SampleTrace(std::string_view header, double ratio);

}  // namespace flotilla
