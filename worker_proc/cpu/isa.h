// Which instruction set the CPU backend runs on: the table of kernels, chosen once at start.
//
// "auto" takes the best of the machine; any level can be forced (tests compare their bits). The
// minimum is x86-64-v3 (AVX2, FMA, F16C). Threads: any. Errors: InvalidArgument for a name that is
// unknown or that this machine can't run, with what it can.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cpu/kernels.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/cpu/sampler_kernels.h"

namespace flotilla::cpu {

// The levels this machine can run, best first; empty below x86-64-v3.
std::vector<std::string> SupportedIsas();

// name: auto | reference | avx2 | avx512 | amx.
StatusOr<const KernelTable*> SelectKernels(std::string_view name);

// The integer kernels beside it, by the same names.
StatusOr<const QuantKernelTable*> SelectQuantKernels(std::string_view name);

// The sampler's passes, by the same names.
StatusOr<const SamplerKernels*> SelectSamplerKernels(std::string_view name);

}  // namespace flotilla::cpu
