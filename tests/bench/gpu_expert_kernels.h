// Rows of gpu_kernels for a mixture of experts in Qwen3-30B-A3B's shape: 2,048 wide, 128 experts of
// 768, 8 of them a token, bfloat16. A step's routes, and the products behind them as the backend
// makes them (worker_proc/cuda/cuda_experts.h).
//
// The bytes are those of the experts that the tokens have, which the rows' names say. Units,
// threads, errors: as BenchDevice's.
#pragma once

#include "tests/bench/gpu_bench_device.h"

namespace flotilla::cuda {

void ExpertRows(BenchDevice* bench);

}  // namespace flotilla::cuda
