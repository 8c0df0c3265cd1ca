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

CommunicatorId NewEmulatedId();
// How long a rank waits for others within an exchange.
StatusOr<std::unique_ptr<Communicator>> JoinEmulated(const CommunicatorId& id, uint32_t rank,
                                                     uint32_t ranks, const GiveUp& give_up,
                                                     int64_t patience_ns,
                                                     emulation::LaunchQueue* queue);

}  // namespace flotilla::cuda
