// Something that finds replicas again and again, on a thread of its own: by DNS, or by Kubernetes'
// EndpointSlices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

// Addresses as gRPC spells them, "10.0.0.7:50051" or "[fd00::7]:50051", rising, each once. An error
// says nothing of what is there; an empty list says that nothing is.
using FoundReplicas = StatusOr<std::vector<std::string>>;

class ReplicaWatch {
 public:
  // Called on the watch's thread, never after Stop.
  using OnResult = std::function<void(FoundReplicas)>;
  virtual ~ReplicaWatch() = default;
  virtual void Stop() = 0;
};

}  // namespace flotilla
