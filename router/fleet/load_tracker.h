// A replica's load as its last frame said, plus what was sent to it since.
//
// Frames say how many submissions their load counts in (Step.submits). For a replica that does not
// say, a submission counts as reported with its first delta or the second frame after it. It says
// how long the prompts are that wait; how much of them it need not compute, the router knows of its
// own requests.
// Units: tokens. Threads: one at a time. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

class LoadTracker {
 public:
  // A new connection: `load` counts in everything that the replica still has.
  void Reset(const v1::Load& load);
  // `cached_tokens` of the prompt are in the replica's cache.
  void OnSubmit(uint64_t stream_id, uint64_t prompt_tokens, uint64_t cached_tokens = 0);
  // It has an answer, or is not wanted any more.
  void OnAnswered(uint64_t stream_id);
  void OnStep(const v1::Step& step);

  uint64_t queued_tokens() const { return load_.queued_tokens(); }
  uint64_t running_tokens() const { return load_.running_tokens(); }
  uint64_t unreported_tokens() const { return unreported_tokens_; }
  // Of both, those that need not be computed.
  uint64_t cached_tokens() const {
    return std::min(cached_tokens_, load_.queued_tokens() + unreported_tokens_);
  }
  // Of all routers, as far as the last frame said, and those that it did not count in.
  uint64_t requests() const {
    return uint64_t{load_.running_requests()} + load_.waiting_requests() + pending_.size();
  }
  uint64_t waiting_requests() const { return load_.waiting_requests(); }
  bool draining() const { return load_.draining(); }
  const v1::Load& load() const { return load_; }  // as the last frame said

 private:
  struct Pending {
    uint64_t number;  // of the connection's submissions, from 1
    uint64_t stream_id;
    uint64_t tokens;
    int frames = 0;
  };
  bool IsReported(const Pending& pending, const v1::Step& step) const;

  v1::Load load_;
  std::deque<Pending> pending_;
  uint64_t submits_ = 0;
  uint64_t unreported_tokens_ = 0;
  uint64_t cached_tokens_ = 0;
  absl::flat_hash_map<uint64_t, uint64_t> cached_of_;  // by stream: those that are not answered
  bool replica_counts_ = false;
};

}  // namespace flotilla
