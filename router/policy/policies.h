// The policies themselves; policy.cc names them.
//
// Units, threads, errors: as policy.h. Ties go round, so that equals share.
#pragma once

#include <limits>
#include <random>

#include "router/policy/policy.h"

namespace flotilla {

// Which of those with fewer than `bound` requests what hashes to `key` belongs to, by rendezvous
// hashing: each key ranks the replicas in an order of its own, which those that come and go do not
// change for the others. candidates.size() if all are above the bound.
size_t PickByRendezvous(uint64_t key, std::span<const ReplicaView> candidates,
                        double bound = std::numeric_limits<double>::infinity());

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
// which none is known, or none of late, counts as the fastest that is: it gets known again, by a
// few requests.
class LeastLatency final : public Policy {
 public:
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;
  bool uses_latency() const override { return true; }

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

// The least work before the first token: what waits there, and of the prompt what is not cached
// there. Running requests count too, as the work that they take meanwhile. A replica whose load is
// kMaxShare times the mean, and more by a prompt than the least loaded, is no candidate, however
// much it has cached.
class PrefixAware final : public Policy {
 public:
  static constexpr double kMaxShare = 1.5;
  static constexpr double kRunningWeight = 0.1;
  size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) override;
  bool uses_cache() const override { return true; }

 private:
  static double Load(const ReplicaView& view);

  int64_t last_ = -1;
};

}  // namespace flotilla
