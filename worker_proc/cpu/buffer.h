// Page-aligned anonymous memory for weights, activations and the KV cache, with 2 MiB pages where
// the system gives them.
//
// Threads: const after Create. Ownership: the buffer owns its mapping. Errors: ResourceExhausted
// naming the size.
#pragma once

#include <cstddef>
#include <utility>

#include "common/base/status.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cpu {

class Buffer {
 public:
  Buffer() = default;
  // `floats` zeroes; every page is touched, so that the memory is there now or never. Fresh memory
  // of a virtual machine can take seconds a GiB: the heartbeat is beaten meanwhile.
  static StatusOr<Buffer> Create(size_t floats, const char* what, const Heartbeat& heartbeat);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  float* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Buffer(float* data, size_t bytes) : data_(data), bytes_(bytes) {}
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace flotilla::cpu
