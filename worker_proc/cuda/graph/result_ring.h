// How a step's results come to the host while the next steps run: a ring of pinned slots and the
// copy stream, ordered by events alone. The host never waits within a step.
//
// A step: BeginStep (the device will not overwrite results that are not copied yet), then whatever
// enqueues it on kCompute, then EndStep (the copy stream takes its results as soon as they are
// there). Poll gives the oldest step's, when they have come, in the order of the steps.
//
//   compute  | wait copied N-1 | step N ........ | record done N |
//   copy                                         | wait done N | copy | record copied N |
//
// Units: bytes. Threads: one. Ownership: the api outlives it; what Poll gives lives until Release.
// Errors: the device's; ResourceExhausted from BeginStep: kSlots steps are in flight or not
// released.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::cuda {

class ResultRing {
 public:
  static constexpr size_t kSlots = 3;

  // max_bytes: of a step's results.
  static StatusOr<std::unique_ptr<ResultRing>> Create(GraphApi* api, size_t max_bytes);
  ~ResultRing();
  ResultRing(const ResultRing&) = delete;
  ResultRing& operator=(const ResultRing&) = delete;

  Status BeginStep();
  // The step's results are the bytes at `device`.
  Status EndStep(const std::byte* device, size_t bytes);
  // Nothing: no step in flight has its results here yet.
  StatusOr<std::optional<std::span<const std::byte>>> Poll();
  void Release();
  size_t in_flight() const { return begun_ - released_; }

 private:
  ResultRing(GraphApi* api, size_t max_bytes) : api_(api), max_bytes_(max_bytes) {}
  struct Slot {
    std::byte* memory = nullptr;  // pinned
    size_t bytes = 0;
    DeviceEvent done;    // the step …
    DeviceEvent copied;  // … and its copy
  };
  Slot& At(uint64_t step) { return slots_[step % kSlots]; }

  GraphApi* const api_;
  const size_t max_bytes_;
  std::array<Slot, kSlots> slots_;
  // Steps since the start: released_ <= ended_ <= begun_ <= ended_ + 1.
  uint64_t begun_ = 0, ended_ = 0, released_ = 0;
};

}  // namespace flotilla::cuda
