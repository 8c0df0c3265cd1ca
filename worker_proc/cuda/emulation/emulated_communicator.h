// Communicator between emulated devices of one process: ranks meet when they gather, and copy what
// the others have.
//
// Threads: as Communicator; ranks are threads. Errors: DeadlineExceeded, from Error: a rank did not
// come; Aborted from Join.
#pragma once

#include <cstdint>
#include <memory>

#include "worker_proc/cuda/communicator.h"
#include "worker_proc/cuda/emulation/launch_queue.h"

namespace flotilla::cuda {

struct EmulatedMember {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  int64_t patience_ns = 0;  // how long it waits for others within an exchange
  bool fails = false;       // its exchanges, though it has joined
};

CommunicatorId NewEmulatedId();
StatusOr<std::unique_ptr<Communicator>> JoinEmulated(const CommunicatorId& id,
                                                     const EmulatedMember& member,
                                                     const GiveUp& give_up,
                                                     emulation::LaunchQueue* queue);

}  // namespace flotilla::cuda
