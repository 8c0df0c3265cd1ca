// Anonymous memory for weights, activations and the KV cache, with 2 MiB pages where the system
// gives them: Buffer is one mapping, Arena hands out pieces of some.
//
// Memory is zero and arrives when it is first touched: by Touch, or by whoever fills it (weights:
// the compute threads that pack them). Fresh memory of a virtual machine can take seconds a GiB, so
// Touch uses all compute threads and beats the heartbeat.
//
// Units: bytes. Threads: one allocates and touches. Ownership: the objects own their mappings.
// Errors: ResourceExhausted naming the size.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cpu/thread_pool.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cpu {

class Buffer {
 public:
  Buffer() = default;
  // what: for the error. Aligned to a page, from 2 MiB up to 2 MiB.
  static StatusOr<Buffer> Create(size_t bytes, const char* what);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Every page is touched, so that the memory is there now or never.
  void Touch(ThreadPool* pool, const Heartbeat& heartbeat) const;

 private:
  Buffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class Arena {
 public:
  Arena(const char* what, size_t chunk_bytes) : what_(what), chunk_bytes_(chunk_bytes) {}

  // Aligned to 64 bytes; lives as long as the arena.
  StatusOr<std::byte*> Allocate(size_t bytes);
  size_t bytes() const { return bytes_; }  // handed out
  void Touch(ThreadPool* pool, const Heartbeat& heartbeat) const;

 private:
  const char* const what_;
  const size_t chunk_bytes_;
  std::vector<Buffer> chunks_;
  size_t used_ = 0;  // of the last chunk
  size_t bytes_ = 0;
};

}  // namespace flotilla::cpu
