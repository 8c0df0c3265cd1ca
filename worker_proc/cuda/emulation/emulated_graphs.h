// GraphApi of the emulated device: what is enqueued runs at once, in its order, so events are
// always done; a graph is the launches and products that its capture was given. What a real device
// forbids within a capture ends the process.
//
// Units: bytes. Threads: one. Ownership: as GraphApi. Errors: ResourceExhausted.
#pragma once

#include <functional>
#include <vector>

#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::cuda {

class EmulatedGraphs final : public GraphApi {
 public:
  // Whatever is waited for, copied or freed, and each graph, comes behind what the queue has.
  explicit EmulatedGraphs(emulation::LaunchQueue* queue) : queue_(*queue) {}

  StatusOr<DeviceMemoryInfo> Memory() override;
  StatusOr<std::byte*> AllocateDevice(size_t bytes) override;
  StatusOr<std::byte*> AllocatePinned(size_t bytes) override { return AllocateDevice(bytes); }
  void FreeDevice(std::byte* memory) override;
  void FreePinned(std::byte* memory) override { FreeDevice(memory); }

  Status BeginCapture() override;
  StatusOr<GraphExec> EndCapture() override;
  Status Launch(GraphExec graph) override;
  void DestroyGraph(GraphExec graph) override;

  StatusOr<DeviceEvent> NewEvent() override { return DeviceEvent{}; }
  void DestroyEvent(DeviceEvent /*event*/) override {}
  Status Record(DeviceEvent /*event*/, DeviceStream /*stream*/) override { return OkStatus(); }
  Status WaitFor(DeviceEvent /*event*/, DeviceStream /*stream*/) override { return OkStatus(); }
  StatusOr<bool> Done(DeviceEvent /*event*/) override { return true; }
  Status Synchronize(DeviceStream /*stream*/) override {
    queue_.Drain();
    return OkStatus();
  }

  Status CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                      DeviceStream stream) override;
  Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                    DeviceStream stream) override;

 private:
  emulation::LaunchQueue& queue_;
  std::vector<std::function<void()>> nodes_;  // of the capture
};

}  // namespace flotilla::cuda
