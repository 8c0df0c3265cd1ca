// The CPU behind Backend: fp32 weights, activations and KV cache (the oracle of later, faster
// arithmetic), on the kernels of one instruction set.
//
// Memory: everything is allocated and touched at start; a step allocates nothing. Layouts are in
// kernels.h. Threads, ownership, errors: as Backend. The name is "cpu-float": all instruction sets
// give the same bits.
#pragma once

#include <memory>

#include "worker_proc/cpu/kernels.h"
#include "worker_proc/model/backend.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla {

// The heartbeat is beaten while memory is allocated.
std::unique_ptr<Backend> MakeCpuBackend(const cpu::KernelTable* kernels,
                                        const Heartbeat& heartbeat = {});

}  // namespace flotilla
