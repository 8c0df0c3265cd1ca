#include "tests/fakes/fake_graph_api.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace flotilla::testing {

using cuda::DeviceEvent;
using cuda::DeviceStream;
using cuda::GraphExec;

namespace {

const char* Name(DeviceStream stream) {
  return stream == DeviceStream::kCompute ? "compute" : "copy";
}

}  // namespace

void FakeGraphApi::Push(DeviceStream stream, Work work) {
  if (capturing_ && stream == DeviceStream::kCompute) {
    CHECK(work.wait == nullptr);
    nodes_.push_back(std::move(work.run));
    return;
  }
  queues_[static_cast<size_t>(stream)].push_back(std::move(work));
}

void FakeGraphApi::Enqueue(std::function<void()> kernel) {
  Push(DeviceStream::kCompute, {std::move(kernel)});
}

bool FakeGraphApi::RunOne() {
  const size_t first = random_() % 2;
  for (const size_t i : {first, 1 - first}) {
    if (queues_[i].empty()) continue;
    const Work& head = queues_[i].front();
    if (head.wait != nullptr && head.wait->done < head.until) continue;
    const Work work = std::move(queues_[i].front());
    queues_[i].pop_front();
    if (work.run) work.run();
    return true;
  }
  return false;
}

void FakeGraphApi::Drain() {
  while (RunOne()) {
  }
  CHECK(queues_[0].empty() && queues_[1].empty());  // else: a wait for what never comes
}

StatusOr<std::byte*> FakeGraphApi::AllocateDevice(size_t bytes) {
  CHECK(!capturing_);
  if (bytes > free_bytes) return absl::ResourceExhaustedError("fake device: out of memory");
  ++device_allocations;
  free_bytes -= bytes;
  auto memory = std::make_unique<std::byte[]>(bytes);
  std::memset(memory.get(), 0xee, bytes);
  std::byte* const at = memory.get();
  memory_[at] = std::move(memory);
  return at;
}

StatusOr<std::byte*> FakeGraphApi::AllocatePinned(size_t bytes) {
  ++pinned_allocations;
  auto memory = std::make_unique<std::byte[]>(bytes);
  std::byte* const at = memory.get();
  memory_[at] = std::move(memory);
  return at;
}

void FakeGraphApi::Free(std::byte* memory) {
  CHECK(memory_.erase(memory) == 1);
  ++frees;
}

Status FakeGraphApi::BeginCapture() {
  CHECK(!capturing_);
  capturing_ = true;
  nodes_.clear();
  Note("begin capture");
  return OkStatus();
}

StatusOr<GraphExec> FakeGraphApi::EndCapture() {
  CHECK(capturing_);
  capturing_ = false;
  Note(StrCat("end capture: ", nodes_.size(), " nodes"));
  if (on_capture) on_capture();
  if (!fail_capture.ok()) return std::exchange(fail_capture, OkStatus());
  free_bytes -= std::min(free_bytes, graph_bytes);
  ++graphs_alive;
  return GraphExec{new Graph{std::move(nodes_)}};
}

Status FakeGraphApi::Launch(GraphExec graph) {
  CHECK(!capturing_);
  Note("launch");
  for (const auto& node : static_cast<Graph*>(graph.handle)->nodes) {
    Push(DeviceStream::kCompute, {node});
  }
  return OkStatus();
}

void FakeGraphApi::DestroyGraph(GraphExec graph) {
  --graphs_alive;
  delete static_cast<Graph*>(graph.handle);
}

StatusOr<DeviceEvent> FakeGraphApi::NewEvent() {
  ++events_alive;
  return DeviceEvent{new Event};
}

void FakeGraphApi::DestroyEvent(DeviceEvent event) {
  --events_alive;
  delete static_cast<Event*>(event.handle);
}

Status FakeGraphApi::Record(DeviceEvent event, DeviceStream stream) {
  CHECK(!capturing_);
  Note(StrCat("record on ", Name(stream)));
  auto* const to = static_cast<Event*>(event.handle);
  const uint64_t number = ++to->recorded;
  Push(stream, {[to, number] { to->done = number; }});
  return OkStatus();
}

Status FakeGraphApi::WaitFor(DeviceEvent event, DeviceStream stream) {
  CHECK(!capturing_);
  Note(StrCat("wait on ", Name(stream)));
  auto* const on = static_cast<Event*>(event.handle);
  Push(stream, {nullptr, on, on->recorded});
  return OkStatus();
}

StatusOr<bool> FakeGraphApi::Done(DeviceEvent event) {
  const auto* const on = static_cast<const Event*>(event.handle);
  return on->done >= on->recorded;
}

Status FakeGraphApi::Synchronize(DeviceStream stream) {
  Note(StrCat("synchronize ", Name(stream)));
  while (!queues_[static_cast<size_t>(stream)].empty()) CHECK(RunOne());
  return OkStatus();
}

Status FakeGraphApi::CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                                  DeviceStream stream) {
  Note(StrCat("copy to device on ", Name(stream)));
  Push(stream, {[to, from, bytes] { std::memcpy(to, from, bytes); }});
  return OkStatus();
}

Status FakeGraphApi::CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                                DeviceStream stream) {
  Note(StrCat("copy to host on ", Name(stream)));
  Push(stream, {[to, from, bytes] { std::memcpy(to, from, bytes); }});
  return OkStatus();
}

}  // namespace flotilla::testing
