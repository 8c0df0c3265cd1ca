// What the dispatcher tells of requests to whoever traces them.
//
// Threads: the io thread. Ownership: outlives the dispatcher. Nothing here blocks or fails.
#pragma once

#include <optional>
#include <string>

#include "router/base/trace_context.h"

namespace flotilla {

struct FinishedRequest;

class RequestTracer {
 public:
  virtual ~RequestTracer() = default;
  // A request has come with this `traceparent`, or without one; nullopt: it is not traced.
  virtual std::optional<TraceContext> Begin(const std::string& traceparent) = 0;
  // It, or a choice of it, has ended.
  virtual void End(const FinishedRequest& request, const TraceContext& trace) = 0;
};

}  // namespace flotilla
