// The policies themselves; policy.cc names them.
//
// Units, threads, errors: as policy.h. Ties go round, so that equals share.
#pragma once

#include <random>

#include "router/policy.h"

namespace flotilla {

// One after the other.
class RoundRobin final : public Policy {
 public:
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;

 private:
  int64_t last_ = -1;
};

// Fewest tokens queued, running or on the way; then fewest requests.
class ShortestQueue final : public Policy {
 public:
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;

 private:
  int64_t last_ = -1;
};

// The shorter queue of two that are drawn. Routers that do not know of each other's requests do not
// all run to the same replica.
class PowerOfTwo final : public Policy {
 public:
  explicit PowerOfTwo(uint64_t seed) : random_(seed) {}
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;

 private:
  std::mt19937_64 random_;
};

// The lowest recent time to a first token, times the requests that would share it. A replica of
// which none is known counts as fast, so that it gets known.
class LeastLatency final : public Policy {
 public:
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;

 private:
  int64_t last_ = -1;
};

// A session stays where its rendezvous hash puts it, in every router, unless that replica has more
// than kMaxShare times the mean of requests: then it goes to its next one. Without a session: the
// shortest queue.
class ConsistentHash final : public Policy {
 public:
  static constexpr double kMaxShare = 1.25;
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;

 private:
  ShortestQueue shortest_queue_;
};

}  // namespace flotilla
