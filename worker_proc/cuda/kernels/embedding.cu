#include "worker_proc/cuda/kernels/embedding.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;

template <typename T, uint32_t n>
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArgs args) {
  StartNext();
  int32_t id = args.ids[blockIdx.x];
  AfterPrevious();
  if (id < 0) id = args.last_tokens[-2 - id];
  const T* const from =
      static_cast<const T*>(args.table) + static_cast<size_t>(id < 0 ? 0 : id) * args.cols;
  float* const to = args.out + static_cast<size_t>(blockIdx.x) * args.cols;
  for (uint32_t c = threadIdx.x * n; c < args.cols; c += blockDim.x * n) {
    float values[n];
    LoadRun(from + c, values);
    for (uint32_t i = 0; i < n; ++i) values[i] *= args.scale;
    StoreRun(to + c, values);
  }
}

}  // namespace

void Embedding(const EmbeddingArgs& args, Stream stream) {
  const LaunchShape shape = {.grid_x = args.tokens, .block = kThreads};
  ForElement(args.table_type, [&](auto element) {
    using T = decltype(element);
    Launch(shape, args.cols % kRun == 0 ? EmbeddingKernel<T, kRun> : EmbeddingKernel<T, 1>, args,
           stream);
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
