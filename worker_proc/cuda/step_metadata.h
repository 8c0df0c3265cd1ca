// A step's metadata on the device: the arrays of a ForwardBatch that kernels read, packed one after
// another so that one copy brings them there. Their addresses change with their sizes.
//
// Units: bytes. Threads: one. Ownership: owns the device's memory, which Reserve allocates for the
// largest step. Errors: ResourceExhausted from Reserve.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_proc/cuda/device.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cuda {

class StepMetadata {
 public:
  explicit StepMetadata(Device* device) : device_(*device) {}

  Status Reserve(const Backend::StepBounds& bounds);
  AttentionContext Upload(const ForwardBatch& batch);
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  template <typename T>
  const T* Add(const std::vector<T>& values);

  Device& device_;
  DeviceBuffer memory_;
  std::vector<std::byte> packed_;
};

}  // namespace flotilla::cuda
