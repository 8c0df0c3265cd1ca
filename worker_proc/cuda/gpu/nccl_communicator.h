// Communicator by NCCL, whose library is looked for when the first rank needs it: the workers of
// one GPU, or of GPUs that reach each other's memory, do without.
//
// Threads: as Communicator. Errors: Unimplemented: there was no nccl.h, there is no libnccl.so.2,
// or one older than 2.14, or NCCL refuses these ranks (two on one GPU).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "worker_proc/cuda/communicator.h"

namespace flotilla::cuda {

StatusOr<CommunicatorId> NewNcclId();
// The calling thread's device.
StatusOr<std::unique_ptr<Communicator>> JoinNccl(const CommunicatorId& id, uint32_t rank,
                                                 uint32_t ranks, GiveUp give_up,
                                                 cudaStream_t stream);

}  // namespace flotilla::cuda
