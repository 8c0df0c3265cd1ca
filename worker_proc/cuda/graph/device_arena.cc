#include "worker_proc/cuda/graph/device_arena.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/flags.h"

namespace flotilla::cuda {
namespace {

constexpr uint64_t kBufferAlignment = 256;  // what cudaMalloc promises

}  // namespace

DeviceArena::~DeviceArena() {
  if (memory_ != nullptr) api_->FreeDevice(memory_);
}

size_t DeviceArena::Plan(std::string name, uint64_t bytes) {
  CHECK(memory_ == nullptr);
  buffers_.push_back({std::move(name), bytes_, bytes});
  bytes_ += (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  return buffers_.size() - 1;
}

Status DeviceArena::Allocate() {
  CHECK(memory_ == nullptr);
  if (bytes_ == 0) return OkStatus();
  StatusOr<std::byte*> memory = api_->AllocateDevice(bytes_);
  if (!memory.ok()) {
    const auto largest =
        std::max_element(buffers_.begin(), buffers_.end(),
                         [](const Buffer& a, const Buffer& b) { return a.bytes < b.bytes; });
    return Annotate(memory.status(),
                    StrCat("the device has no ", FormatBytes(bytes_), " for steps, ",
                           FormatBytes(largest->bytes), " of them for ", largest->name));
  }
  memory_ = *memory;
  return OkStatus();
}

std::byte* DeviceArena::at(size_t buffer) const {
  CHECK(memory_ != nullptr && buffer < buffers_.size());
  return memory_ + buffers_[buffer].offset;
}

}  // namespace flotilla::cuda
