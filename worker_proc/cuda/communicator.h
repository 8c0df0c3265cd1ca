// Exchanges between the ranks' devices by the vendor's library, NCCL on GPUs: over whatever links
// they have, on several hosts too. For ranks that do not reach each other's memory, and for what is
// large among those that do, if it is faster.
//
// Units: bytes. Threads: one. Ownership: the device outlives it. Errors: of what is queued, those
// of Error; it ends nothing by itself: who waits looks at Error and calls Abort.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "common/base/status.h"

namespace flotilla::cuda {

// One rank draws it, all join with it.
using CommunicatorId = std::array<std::byte, 128>;

// Asked again and again while others are waited for; true: no longer.
using GiveUp = std::function<bool()>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const char* name() const = 0;  // "NCCL 2.28.9"
  // All ranks: rank r's bytes[r] bytes at `from` come to `to` on all of them, one rank behind the
  // other. Queued on the device's stream; may be captured, in a graph that is destroyed before
  // Abort.
  virtual Status AllGather(const void* from, std::span<const size_t> bytes, std::byte* to) = 0;
  virtual Status Error() = 0;
  // What is queued ends, whether others came or not; nothing more can be.
  virtual void Abort() = 0;
};

}  // namespace flotilla::cuda
