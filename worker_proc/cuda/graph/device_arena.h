// All of the device's memory for steps in one allocation, made once at the start: buffers are
// planned first, then placed, and nothing is allocated afterwards.
//
// Units: bytes; every buffer begins at a multiple of 256. Threads: one. Ownership: the arena owns
// the memory; the api outlives it. Errors: ResourceExhausted from Allocate, with the sizes.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::cuda {

class DeviceArena {
 public:
  explicit DeviceArena(GraphApi* api) : api_(api) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Returns the buffer's number. Before Allocate only. `name`: for errors.
  size_t Plan(std::string name, uint64_t bytes);
  Status Allocate();
  std::byte* at(size_t buffer) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Buffer {
    std::string name;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  GraphApi* const api_;
  std::vector<Buffer> buffers_;
  uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace flotilla::cuda
