// OpenDevice of a program that was built without CUDA.
#include "worker_proc/cuda/device.h"

namespace flotilla::cuda {

StatusOr<std::unique_ptr<Device>> OpenDevice(uint32_t /*ordinal*/,
                                             const std::string& /*cache_dir*/) {
  return absl::UnimplementedError(
      "--device cuda: this build has no CUDA; ./flotilla serve --device cuda makes one that has "
      "(needs nvcc, see docs/cuda.md), or use --device cpu");
}

}  // namespace flotilla::cuda
