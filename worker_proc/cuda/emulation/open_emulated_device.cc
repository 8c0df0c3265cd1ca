// OpenDevice of a program whose every GPU is the emulation.
#include "worker_proc/cuda/device.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla::cuda {

StatusOr<std::unique_ptr<Device>> OpenDevice(uint32_t /*ordinal*/,
                                             const std::string& /*cache_dir*/) {
  return MakeEmulatedDevice();
}

}  // namespace flotilla::cuda
