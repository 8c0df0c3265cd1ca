// The last requests that ended, for the operator's page and for traces: when they came, how they
// ended, how many tokens they had, and where their time went. The slow ones are logged.
//
// Each choice of a request is one. A fixed number is kept; the oldest makes room. So that the
// stages are known, every request asks its replica for them; who did not ask does not get them.
// Units: CLOCK_MONOTONIC ns. Threads: the io thread. Errors: none.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "router/fleet/request_stream.h"
#include "router/observe/request_tracer.h"

namespace flotilla {

struct FinishedRequest {
  uint64_t number = 0;  // from 1, in the order of their ends
  std::string request_id, tenant, model;
  std::string replica;  // the last that had it; empty: none
  std::string outcome;  // "stop", "length", "embedded", "aborted", "deadline" or "error"
  size_t choice = 0;
  int64_t arrival_unix_ms = 0;
  int64_t arrival_ns = 0, first_token_ns = 0, end_ns = 0;  // first token 0: there was none
  v1::Usage usage;
  v1::Timing timing;  // finished_ns is 0 if the replica did not say
};

class FinishedRequests {
 public:
  // slow_ms: a first token that takes longer, or further ones that take a tenth of it each, make a
  // request slow; 0: none is. tracer: null if nothing is traced.
  FinishedRequests(size_t most, int64_t slow_ms, RequestTracer* tracer)
      : most_(most), slow_ms_(slow_ms), tracer_(tracer) {}

  // Before a replica gets it. `first`: of the choices that came with it, which have one trace.
  void OnArrival(const RequestStream& first, RequestStream* stream) const;
  // It ended. `replica`: the last that had it, or empty; `outcome`: one of FinishedRequest's,
  // unless the client gets a last piece, which says so and loses what the client did not ask for.
  void OnEnd(const RequestStream& stream, const std::string& replica, const char* outcome);
  void OnLast(const RequestStream& stream, const std::string& replica, v1::Delta* last);

  const std::deque<FinishedRequest>& requests() const { return requests_; }  // the oldest first

 private:
  FinishedRequest Describe(const RequestStream& stream, const std::string& replica) const;
  bool Wants(const RequestStream& stream) const {
    return most_ > 0 || slow_ms_ > 0 || stream.trace.has_value();
  }
  void Add(const RequestStream& stream, FinishedRequest request);
  bool IsSlow(const FinishedRequest& request) const;
  void LogSlow(const FinishedRequest& request);

  const size_t most_;
  const int64_t slow_ms_;
  RequestTracer* const tracer_;
  uint64_t number_ = 0;
  int64_t logged_ns_ = 0;    // the last slow one
  uint64_t not_logged_ = 0;  // since then
  std::deque<FinishedRequest> requests_;
};

}  // namespace flotilla
