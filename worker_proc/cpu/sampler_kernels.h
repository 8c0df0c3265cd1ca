// The sampler's passes (runner/sampler_kernels.h) for each instruction set of the CPU backend;
// isa.h chooses among them.
//
// Threads: stateless. Errors: none. Source: ours.
#pragma once

#include "worker_proc/runner/sampler_kernels.h"

namespace flotilla::cpu {

const SamplerKernels& ReferenceSamplerKernels();  // plain loops: the oracle
const SamplerKernels& Avx2SamplerKernels();
const SamplerKernels& Avx512SamplerKernels();

}  // namespace flotilla::cpu
