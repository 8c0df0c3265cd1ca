// Which replica takes a request. Pure: no I/O, no clock; the same seed and calls give the same
// picks.
//
// Units: tokens, seconds. Threads: one at a time. Errors: none; the caller passes at least one
// candidate. A new policy is a class and a line in the table of policy.cc, and a name in
// common/base/flags.h. Source: requirement 001 (load balance ROUND_ROBIN, SHORTEST_QUEUE);
// Mitzenmacher, "The Power of Two Choices"; Thaler and Ravishankar's rendezvous hashing with the
// load bound of Mirrokni et al.; Finagle's peak EWMA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

// One replica that could take the request now.
struct ReplicaView {
  uint32_t index = 0;                  // stable over the router's life
  uint64_t identity = 0;               // of its address: the same in every router
  uint64_t queued_tokens = 0;          // as the replica's last frame said
  uint64_t running_tokens = 0;         // as the replica's last frame said
  uint64_t unreported_tokens = 0;      // prompt tokens sent to it that no frame has counted yet
  uint64_t waiting_cached_tokens = 0;  // of queued and unreported ones: cached there already; if
                                       // the policy uses_cache
  uint32_t active_requests = 0;        // of this router
  double first_token_s = 0;            // recent time to a first token, not fading while it has
                                       // requests; 0: not known; if the policy uses_latency
  uint64_t cached_tokens = 0;          // of the request's prompt; if the policy uses_cache

  uint64_t load_tokens() const { return queued_tokens + running_tokens + unreported_tokens; }
  friend bool operator==(const ReplicaView&, const ReplicaView&) = default;
};

struct PolicyRequest {
  uint64_t prompt_tokens = 0;
  uint64_t session = 0;  // hash of what names the client's session or user; 0: nothing does
};

class Policy {
 public:
  virtual ~Policy() = default;
  // It asks for cached_tokens, which replicas must tell.
  virtual bool uses_cache() const { return false; }
  // It asks for first_token_s.
  virtual bool uses_latency() const { return false; }
  // Position in `candidates` (not empty, ordered by index).
  virtual size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) = 0;
};

// Names for --policy, in the order in which help shows them.
std::vector<std::string> PolicyNames();
// `seed`: for those that draw.
StatusOr<std::unique_ptr<Policy>> CreatePolicy(std::string_view name, uint64_t seed);

}  // namespace flotilla
