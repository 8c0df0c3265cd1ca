// Which replica takes a request. Pure: no I/O, no clock; the same calls give the same picks.
//
// Units: tokens. Threads: one at a time. Errors: none; the caller passes at least one candidate.
// A new policy is a class and a line in the table of policy.cc. Source: requirement 001 (load
// balance ROUND_ROBIN, SHORTEST_QUEUE).
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
  uint32_t index = 0;              // stable over the router's life
  uint64_t queued_tokens = 0;      // as the replica's last frame said
  uint64_t running_tokens = 0;     // as the replica's last frame said
  uint64_t unreported_tokens = 0;  // prompt tokens sent to it that no frame has counted yet
  uint32_t active_requests = 0;    // of this router

  uint64_t load_tokens() const { return queued_tokens + running_tokens + unreported_tokens; }
};

struct PolicyRequest {
  uint64_t prompt_tokens = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // Position in `candidates` (not empty, ordered by index).
  virtual size_t Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) = 0;
};

// Names for --policy, in the order in which help shows them.
std::vector<std::string> PolicyNames();
StatusOr<std::unique_ptr<Policy>> CreatePolicy(std::string_view name);

}  // namespace flotilla
