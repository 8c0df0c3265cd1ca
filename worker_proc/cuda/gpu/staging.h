// Copies from pageable memory to the device through pinned chunks, so that a copy runs while the
// next chunk is filled, and the caller's memory is free when Copy returns.
//
// Units: bytes. Threads: the stream's. Ownership: owns its chunks; the stream outlives it. Errors:
// CUDA's.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"

namespace flotilla::cuda {

class Staging {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;
  // More than two steps take: one that is begun behind another must not wait for its copies.
  static constexpr size_t kChunks = 32;

  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  Status Open();
  Status Copy(const void* from, uint64_t bytes, void* to, cudaStream_t stream);

 private:
  struct Chunk {
    void* memory = nullptr;      // pinned
    cudaEvent_t read = nullptr;  // the device has it
  };
  std::array<Chunk, kChunks> chunks_;
  size_t next_ = 0;
};

}  // namespace flotilla::cuda
