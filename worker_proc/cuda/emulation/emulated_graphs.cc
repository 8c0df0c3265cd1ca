#include "worker_proc/cuda/emulation/emulated_graphs.h"

#include <cstring>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "common/base/memory_info.h"
#include "worker_proc/cuda/emulation/block.h"

namespace flotilla::cuda {
namespace {

constexpr std::align_val_t kAlignment{256};  // as cudaMalloc's

struct Graph {
  std::vector<std::function<void()>> nodes;
};

}  // namespace

StatusOr<DeviceMemoryInfo> EmulatedGraphs::Memory() {
  const uint64_t bytes = AvailableMemoryBytes();
  return DeviceMemoryInfo{bytes, bytes};
}

StatusOr<std::byte*> EmulatedGraphs::AllocateDevice(size_t bytes) {
  CHECK(!emulation::Captures());
  void* const memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr)
    return absl::ResourceExhaustedError(StrCat("no memory for ", bytes, " bytes"));
  return static_cast<std::byte*>(memory);
}

void EmulatedGraphs::FreeDevice(std::byte* memory) {
  queue_.Drain();
  ::operator delete(memory, kAlignment);
}

Status EmulatedGraphs::BeginCapture() {
  CHECK(!emulation::Captures());
  nodes_.clear();
  emulation::CaptureInto(&nodes_);
  return OkStatus();
}

StatusOr<GraphExec> EmulatedGraphs::EndCapture() {
  CHECK(emulation::Captures());
  emulation::CaptureInto(nullptr);
  return GraphExec{new Graph{std::move(nodes_)}};
}

Status EmulatedGraphs::Launch(GraphExec graph) {
  CHECK(!emulation::Captures());
  queue_.Drain();
  for (const std::function<void()>& node : static_cast<const Graph*>(graph.handle)->nodes) node();
  queue_.Drain();
  return OkStatus();
}

void EmulatedGraphs::DestroyGraph(GraphExec graph) { delete static_cast<Graph*>(graph.handle); }

Status EmulatedGraphs::CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                                    DeviceStream /*stream*/) {
  CHECK(!emulation::Captures());
  queue_.Drain();
  std::memcpy(to, from, bytes);
  return OkStatus();
}

Status EmulatedGraphs::CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                                  DeviceStream stream) {
  return CopyToDevice(to, from, bytes, stream);
}

}  // namespace flotilla::cuda
