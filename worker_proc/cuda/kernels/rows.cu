#include "worker_proc/cuda/kernels/rows.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;

// Elements of two bytes, as many as there are in rows of any type.
__global__ void __launch_bounds__(kThreads) SelectRowsKernel(SelectRowsArgs args) {
  StartNext();
  AfterPrevious();
  const size_t length = args.row_bytes / sizeof(uint16_t);
  const uint16_t* const from =
      static_cast<const uint16_t*>(args.x) + args.rows[blockIdx.x] * length;
  uint16_t* const to = static_cast<uint16_t*>(args.out) + blockIdx.x * length;
  for (size_t i = threadIdx.x; i < length; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads) SoftCapKernel(SoftCapArgs args) {
  StartNext();
  AfterPrevious();
  const uint32_t c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= args.cols) return;
  float& x = args.x[static_cast<size_t>(blockIdx.y) * args.cols + c];
  x = args.cap * FastTanh(x / args.cap);
}

}  // namespace

void SelectRows(const SelectRowsArgs& args, Stream stream) {
  Launch({.grid_x = args.num_rows, .block = kThreads}, SelectRowsKernel, args, stream);
}

void SoftCap(const SoftCapArgs& args, Stream stream) {
  Launch({.grid_x = CeilDiv(args.cols, kThreads), .grid_y = args.rows, .block = kThreads},
         SoftCapKernel, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
