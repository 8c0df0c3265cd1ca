#include "worker_proc/cuda/gpu/staging.h"

#include <algorithm>
#include <cstring>

#include "worker_proc/cuda/gpu/cuda_status.h"

namespace flotilla::cuda {

Status Staging::Open() {
  for (Chunk& chunk : chunks_) {
    RETURN_IF_ERROR(ToStatus(cudaMallocHost(&chunk.memory, kChunkBytes), "pinned memory"));
    RETURN_IF_ERROR(
        ToStatus(cudaEventCreateWithFlags(&chunk.read, cudaEventDisableTiming), "cudaEventCreate"));
  }
  return OkStatus();
}

Staging::~Staging() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.read != nullptr) cudaEventDestroy(chunk.read);
    if (chunk.memory != nullptr) cudaFreeHost(chunk.memory);
  }
}

Status Staging::Copy(const void* from, uint64_t bytes, void* to, cudaStream_t stream) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  while (bytes > 0) {
    Chunk& chunk = chunks_[next_];
    next_ = (next_ + 1) % chunks_.size();
    const size_t now = std::min<uint64_t>(bytes, kChunkBytes);
    RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(chunk.read), "copy to the device"));
    std::memcpy(chunk.memory, source, now);
    RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(target, chunk.memory, now, cudaMemcpyHostToDevice, stream),
                 "copy to the device"));
    RETURN_IF_ERROR(ToStatus(cudaEventRecord(chunk.read, stream), "cudaEventRecord"));
    source += now;
    target += now;
    bytes -= now;
  }
  return OkStatus();
}

}  // namespace flotilla::cuda
