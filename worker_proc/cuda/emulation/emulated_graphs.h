// GraphApi of the emulated device: kernels go to its queue, copies on kCompute run behind it, and
// those on kCopy as late as may be: when they are waited for, or at a random question whether they
// are done. A graph is the launches and products that its capture was given. What a real device
// forbids within a capture ends the process.
//
// Whole multiples of kSharedUnit are memory that other processes may have too.
//
// Units: bytes. Threads: one. Ownership: as GraphApi. Errors: ResourceExhausted.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "shm/segment.h"
#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::cuda {

class EmulatedGraphs final : public GraphApi {
 public:
  static constexpr uint64_t kSharedUnit = 2 << 20;

  // Whatever is waited for, copied or freed, and each graph, comes behind what the queue has.
  explicit EmulatedGraphs(emulation::LaunchQueue* queue) : queue_(*queue) {}

  StatusOr<DeviceMemoryInfo> Memory() override;
  StatusOr<std::byte*> AllocateDevice(size_t bytes) override;
  StatusOr<std::byte*> AllocatePinned(size_t bytes) override { return AllocateDevice(bytes); }
  void FreeDevice(std::byte* memory) override;
  void FreePinned(std::byte* memory) override { FreeDevice(memory); }
  // Null: memory of this process alone.
  const Segment* SegmentOf(const std::byte* memory) const;

  Status BeginCapture() override;
  StatusOr<GraphExec> EndCapture() override;
  Status Launch(GraphExec graph) override;
  void DestroyGraph(GraphExec graph) override;

  StatusOr<DeviceEvent> NewEvent() override { return DeviceEvent{new Event}; }
  void DestroyEvent(DeviceEvent event) override;
  Status Record(DeviceEvent event, DeviceStream stream) override;
  Status WaitFor(DeviceEvent event, DeviceStream stream) override;
  StatusOr<bool> Done(DeviceEvent event) override;
  Status Synchronize(DeviceStream stream) override;

  Status CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                      DeviceStream stream) override;
  Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                    DeviceStream stream) override;

 private:
  struct Event {
    bool is_late = false;  // recorded on kCopy, behind what has not run
    int behind = 0;        // the same on kCompute: so often
  };
  struct Allocation {
    uint64_t bytes = 0;
    std::unique_ptr<Segment> segment;  // null: of the heap
  };
  void RunLate();
  // What kCopy was given before its entry `end`.
  void RunLateTo(uint64_t end);

  uint64_t total_bytes_ = 0;  // what the host had when it was first asked
  uint64_t used_bytes_ = 0;
  std::unordered_map<const std::byte*, Allocation> allocated_;

  emulation::LaunchQueue& queue_;
  std::deque<std::function<void()>> late_;  // what kCopy has
  uint64_t num_late_run_ = 0;
  std::vector<std::function<void()>> nodes_;  // of the capture
};

}  // namespace flotilla::cuda
