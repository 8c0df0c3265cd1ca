// What the host side needs of a CUDA device: streams, events, graphs, copies, memory. CudaGraphApi
// is the device's; tests have a fake that records the order of calls.
//
// There are two streams: kCompute, on which steps run and are captured, and kCopy, which brings
// results to the host meanwhile. Calls enqueue and return; only Synchronize waits. While a stream
// is captured, what is enqueued on it becomes the graph and does not run.
//
// Units: bytes. Threads: one. Ownership: handles are the api's until their Destroy or Free, or its
// own end. Errors: Internal with the device's own words; ResourceExhausted: no memory. An error of
// the device stays: the process must end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"

namespace flotilla::cuda {

enum class DeviceStream : uint32_t { kCompute = 0, kCopy = 1 };

struct GraphExec {  // a graph that can be launched
  void* handle = nullptr;
};
struct DeviceEvent {
  void* handle = nullptr;
};
struct DeviceMemoryInfo {
  uint64_t free = 0;
  uint64_t total = 0;
};

class GraphApi {
 public:
  virtual ~GraphApi() = default;

  // ---- Memory. Not within a capture, and never after the start.
  virtual StatusOr<DeviceMemoryInfo> Memory() = 0;
  virtual StatusOr<std::byte*> AllocateDevice(size_t bytes) = 0;
  virtual StatusOr<std::byte*> AllocatePinned(size_t bytes) = 0;  // host memory, for fast copies
  virtual void FreeDevice(std::byte* memory) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  // ---- Graphs, of what kCompute is given between Begin and End.
  virtual Status BeginCapture() = 0;
  // Also ends a capture that failed; the error is then the first one's.
  virtual StatusOr<GraphExec> EndCapture() = 0;
  virtual Status Launch(GraphExec graph) = 0;  // on kCompute
  virtual void DestroyGraph(GraphExec graph) = 0;

  // ---- Order.
  virtual StatusOr<DeviceEvent> NewEvent() = 0;
  virtual void DestroyEvent(DeviceEvent event) = 0;
  virtual Status Record(DeviceEvent event, DeviceStream stream) = 0;
  // What comes next on the stream waits for what the event was last recorded behind.
  virtual Status WaitFor(DeviceEvent event, DeviceStream stream) = 0;
  // True if that is done, or the event was never recorded.
  virtual StatusOr<bool> Done(DeviceEvent event) = 0;
  virtual Status Synchronize(DeviceStream stream) = 0;

  // ---- Copies. The host's side is pinned.
  virtual Status CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                              DeviceStream stream) = 0;
  virtual Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                            DeviceStream stream) = 0;
};

}  // namespace flotilla::cuda
