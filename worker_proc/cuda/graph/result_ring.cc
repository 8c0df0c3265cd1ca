#include "worker_proc/cuda/graph/result_ring.h"

#include "common/base/check.h"

namespace flotilla::cuda {

StatusOr<std::unique_ptr<ResultRing>> ResultRing::Create(GraphApi* api, size_t max_bytes) {
  std::unique_ptr<ResultRing> ring(new ResultRing(api, max_bytes));
  for (Slot& slot : ring->slots_) {
    ASSIGN_OR_RETURN(slot.memory, api->AllocatePinned(max_bytes));
    ASSIGN_OR_RETURN(slot.done, api->NewEvent());
    ASSIGN_OR_RETURN(slot.copied, api->NewEvent());
  }
  return ring;
}

ResultRing::~ResultRing() {
  for (const Slot& slot : slots_) {
    if (slot.copied.handle != nullptr) api_->DestroyEvent(slot.copied);
    if (slot.done.handle != nullptr) api_->DestroyEvent(slot.done);
    if (slot.memory != nullptr) api_->FreePinned(slot.memory);
  }
}

Status ResultRing::BeginStep() {
  CHECK(begun_ == ended_);
  if (in_flight() == kSlots) {
    return absl::ResourceExhaustedError(
        StrCat("the results of ", kSlots, " steps have not been taken"));
  }
  // Every step writes its results to the same place.
  if (ended_ > 0) RETURN_IF_ERROR(api_->WaitFor(At(ended_ - 1).copied, DeviceStream::kCompute));
  ++begun_;
  return OkStatus();
}

Status ResultRing::EndStep(const std::byte* device, size_t bytes) {
  CHECK(begun_ == ended_ + 1 && bytes <= max_bytes_);
  Slot& slot = At(ended_);
  slot.bytes = bytes;
  RETURN_IF_ERROR(api_->Record(slot.done, DeviceStream::kCompute));
  RETURN_IF_ERROR(api_->WaitFor(slot.done, DeviceStream::kCopy));
  if (bytes > 0) RETURN_IF_ERROR(api_->CopyToHost(slot.memory, device, bytes, DeviceStream::kCopy));
  RETURN_IF_ERROR(api_->Record(slot.copied, DeviceStream::kCopy));
  ++ended_;
  return OkStatus();
}

StatusOr<std::optional<std::span<const std::byte>>> ResultRing::Poll() {
  if (released_ == ended_) return std::nullopt;
  const Slot& slot = At(released_);
  ASSIGN_OR_RETURN(const bool here, api_->Done(slot.copied));
  if (!here) return std::nullopt;
  return std::span<const std::byte>(slot.memory, slot.bytes);
}

void ResultRing::Release() {
  CHECK(released_ < ended_);
  ++released_;
}

}  // namespace flotilla::cuda
