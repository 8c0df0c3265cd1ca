#include "worker_proc/cuda/emulation/emulated_graphs.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "common/base/memory_info.h"
#include "worker_proc/cuda/emulation/block_runner.h"

namespace flotilla::cuda {
namespace {

constexpr std::align_val_t kAlignment{256};  // as cudaMalloc's
constexpr uint64_t kNodeBytes = 1024;        // of a graph, as the device counts it

struct Graph {
  std::vector<std::function<void()>> nodes;
};

}  // namespace

StatusOr<DeviceMemoryInfo> EmulatedGraphs::Memory() {
  if (total_bytes_ == 0) total_bytes_ = used_bytes_ + AvailableMemoryBytes();
  return DeviceMemoryInfo{total_bytes_ - std::min(total_bytes_, used_bytes_), total_bytes_};
}

StatusOr<std::byte*> EmulatedGraphs::AllocateDevice(size_t bytes) {
  CHECK(!emulation::Captures());
  Allocation allocation{bytes, nullptr};
  std::byte* memory = nullptr;
  if (bytes > 0 && bytes % kSharedUnit == 0) {
    ASSIGN_OR_RETURN(Segment segment, Segment::Create("emulated-gpu", bytes));
    allocation.segment = std::make_unique<Segment>(std::move(segment));
    memory = static_cast<std::byte*>(allocation.segment->data());
  } else {
    memory = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
  }
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(StrCat("no memory for ", bytes, " bytes"));
  }
  used_bytes_ += bytes;
  allocated_.emplace(memory, std::move(allocation));
  return memory;
}

void EmulatedGraphs::FreeDevice(std::byte* memory) {
  RunLate();
  const auto found = allocated_.find(memory);
  CHECK(found != allocated_.end());
  used_bytes_ -= found->second.bytes;
  if (found->second.segment == nullptr) ::operator delete(memory, kAlignment);
  allocated_.erase(found);
}

const Segment* EmulatedGraphs::SegmentOf(const std::byte* memory) const {
  const auto found = allocated_.find(memory);
  return found == allocated_.end() ? nullptr : found->second.segment.get();
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
  used_bytes_ += nodes_.size() * kNodeBytes;
  return GraphExec{new Graph{std::move(nodes_)}};
}

Status EmulatedGraphs::Launch(GraphExec graph) {
  CHECK(!emulation::Captures());
  const auto behind_all = [] {};
  queue_.Run(behind_all);
  for (const std::function<void()>& node : static_cast<const Graph*>(graph.handle)->nodes) node();
  queue_.Run(behind_all);
  return OkStatus();
}

void EmulatedGraphs::DestroyGraph(GraphExec graph) {
  const std::unique_ptr<Graph> gone(static_cast<Graph*>(graph.handle));
  used_bytes_ -= gone->nodes.size() * kNodeBytes;
}

void EmulatedGraphs::RunLate() {
  queue_.Drain();
  RunLateTo(num_late_run_ + late_.size());
}

void EmulatedGraphs::RunLateTo(uint64_t end) {
  for (; num_late_run_ < end; ++num_late_run_) {
    late_.front()();
    late_.pop_front();
  }
}

void EmulatedGraphs::DestroyEvent(DeviceEvent event) {
  RunLate();
  delete static_cast<Event*>(event.handle);
}

Status EmulatedGraphs::Record(DeviceEvent event, DeviceStream stream) {
  Event* const recorded = static_cast<Event*>(event.handle);
  recorded->is_late = stream == DeviceStream::kCopy;
  if (recorded->is_late) {
    late_.push_back([recorded] { recorded->is_late = false; });
  } else {
    ++recorded->behind;
    queue_.Run([recorded] { --recorded->behind; });
  }
  return OkStatus();
}

Status EmulatedGraphs::WaitFor(DeviceEvent event, DeviceStream stream) {
  const bool is_late = static_cast<const Event*>(event.handle)->is_late;
  if (is_late && stream == DeviceStream::kCompute) {
    queue_.Run([this, end = num_late_run_ + late_.size()] { RunLateTo(end); });
  }
  return OkStatus();
}

StatusOr<bool> EmulatedGraphs::Done(DeviceEvent event) {
  const Event* const asked = static_cast<const Event*>(event.handle);
  if (asked->is_late && emulation::Draw(2) == 0 && queue_.TryDrain()) RunLate();
  if (asked->behind > 0) queue_.TryDrain();
  return !asked->is_late && asked->behind == 0;
}

Status EmulatedGraphs::Synchronize(DeviceStream stream) {
  if (stream == DeviceStream::kCopy) {
    RunLate();
  } else {
    queue_.Drain();
  }
  return OkStatus();
}

Status EmulatedGraphs::CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                                    DeviceStream /*stream*/) {
  CHECK(!emulation::Captures());
  if (queue_.TryDrain()) {
    std::memcpy(to, from, bytes);
  } else {
    queue_.Run([to, values = std::vector<std::byte>(from, from + bytes)] {
      std::memcpy(to, values.data(), values.size());
    });
  }
  return OkStatus();
}

Status EmulatedGraphs::CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                                  DeviceStream stream) {
  CHECK(!emulation::Captures());
  const auto copy = [to, from, bytes] { std::memcpy(to, from, bytes); };
  if (stream == DeviceStream::kCompute) {
    queue_.Run(copy);
  } else {
    late_.push_back(copy);
  }
  return OkStatus();
}

}  // namespace flotilla::cuda
