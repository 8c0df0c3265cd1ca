// GraphApi without a device: streams are queues whose work runs later, in an order that a seed
// draws among those that streams and events allow. So what is overwritten too early is seen.
//
// "Kernels" are functions given to Enqueue; within a capture they become nodes of the graph. Every
// call is recorded as a line in calls(). Memory is the host's; free memory is a counter.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "worker_proc/cuda/graph/graph_api.h"

namespace flotilla::testing {

class FakeGraphApi final : public cuda::GraphApi {
 public:
  explicit FakeGraphApi(uint32_t seed = 1) : random_(seed) {}

  // A kernel on kCompute.
  void Enqueue(std::function<void()> kernel);
  // One piece of work, if any may run.
  bool RunOne();
  // Until nothing is left.
  void Drain();

  std::vector<std::string> calls;
  uint64_t free_bytes = uint64_t{1} << 30;
  uint64_t total_bytes = uint64_t{1} << 30;
  uint64_t graph_bytes = 0;          // that each graph takes
  Status fail_capture;               // what the next EndCapture says
  std::function<void()> on_capture;  // called by EndCapture
  int device_allocations = 0, pinned_allocations = 0, graphs_alive = 0, events_alive = 0;
  int frees = 0;

  StatusOr<cuda::DeviceMemoryInfo> Memory() override {
    return cuda::DeviceMemoryInfo{free_bytes, total_bytes};
  }
  StatusOr<std::byte*> AllocateDevice(size_t bytes) override;
  StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreeDevice(std::byte* memory) override { Free(memory); }
  void FreePinned(std::byte* memory) override { Free(memory); }
  Status BeginCapture() override;
  StatusOr<cuda::GraphExec> EndCapture() override;
  Status Launch(cuda::GraphExec graph) override;
  void DestroyGraph(cuda::GraphExec graph) override;
  StatusOr<cuda::DeviceEvent> NewEvent() override;
  void DestroyEvent(cuda::DeviceEvent event) override;
  Status Record(cuda::DeviceEvent event, cuda::DeviceStream stream) override;
  Status WaitFor(cuda::DeviceEvent event, cuda::DeviceStream stream) override;
  StatusOr<bool> Done(cuda::DeviceEvent event) override;
  Status Synchronize(cuda::DeviceStream stream) override;
  Status CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                      cuda::DeviceStream stream) override;
  Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                    cuda::DeviceStream stream) override;

 private:
  struct Event {
    uint64_t recorded = 0;  // Records enqueued …
    uint64_t done = 0;      // … and run
  };
  struct Work {
    std::function<void()> run;
    Event* wait = nullptr;  // runs once wait->done has reached …
    uint64_t until = 0;
  };
  struct Graph {
    std::vector<std::function<void()>> nodes;
  };
  void Push(cuda::DeviceStream stream, Work work);
  void Free(std::byte* memory);
  void Note(std::string line) { calls.push_back(std::move(line)); }

  std::mt19937 random_;
  std::deque<Work> queues_[2];
  bool capturing_ = false;
  std::vector<std::function<void()>> nodes_;  // of the capture
  std::map<std::byte*, std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace flotilla::testing
