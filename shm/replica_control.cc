#include "shm/replica_control.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "shm/futex.h"

namespace flotilla {
namespace {

constexpr uint64_t kControlMagic = 0x314c525443544c46;  // "FLTCTRL1"
constexpr uint32_t kControlVersion = 2;

}  // namespace

const char* ProcessStateName(ProcessState state) {
  switch (state) {
    case ProcessState::kAbsent:
      return "absent";
    case ProcessState::kStarting:
      return "starting";
    case ProcessState::kLoading:
      return "loading";
    case ProcessState::kLoaded:
      return "loaded";
    case ProcessState::kWarmup:
      return "warmup";
    case ProcessState::kReady:
      return "ready";
    case ProcessState::kStopping:
      return "stopping";
    case ProcessState::kDead:
      return "dead";
  }
  return "unknown";
}

ReplicaControl::ReplicaControl(Segment segment)
    : segment_(std::move(segment)), block_(static_cast<ReplicaControlBlock*>(segment_.data())) {}

StatusOr<ReplicaControl> ReplicaControl::Create(uint32_t tp_size) {
  if (tp_size == 0 || tp_size > kMaxRanks)
    return absl::InvalidArgumentError(
        absl::StrCat("tp must be 1 to ", kMaxRanks, ", not ", tp_size));
  ASSIGN_OR_RETURN(Segment segment,
                   Segment::Create("flotilla-control", sizeof(ReplicaControlBlock)));
  auto* block = new (segment.data()) ReplicaControlBlock{};
  block->magic = kControlMagic;
  block->version = kControlVersion;
  block->tp_size = tp_size;
  return ReplicaControl(std::move(segment));
}

StatusOr<ReplicaControl> ReplicaControl::Map(UniqueFd fd) {
  StatusOr<Segment> segment = Segment::Map(std::move(fd), sizeof(ReplicaControlBlock));
  if (!segment.ok()) return Annotate(segment.status(), "control segment");
  const auto* block = static_cast<const ReplicaControlBlock*>(segment->data());
  if (block->magic != kControlMagic || block->version != kControlVersion)
    return absl::FailedPreconditionError(
        "control segment: wrong magic or version (are all binaries of one build?)");
  if (block->tp_size == 0 || block->tp_size > kMaxRanks)
    return absl::FailedPreconditionError(
        absl::StrCat("control segment: bad tp_size ", block->tp_size));
  return ReplicaControl(std::move(*segment));
}

void ReplicaControl::SetBackend(WorkerReport* report, std::string_view name) {
  CHECK(name.size() <= kMaxBackendName);
  uint64_t words[kBackendNameWords] = {};
  std::memcpy(words, name.data(), name.size());
  for (size_t i = 0; i < kBackendNameWords; ++i) {
    report->backend[i].store(words[i], std::memory_order_release);
  }
}

std::string ReplicaControl::BackendName(const WorkerReport& report) {
  uint64_t words[kBackendNameWords];
  for (size_t i = 0; i < kBackendNameWords; ++i) {
    words[i] = report.backend[i].load(std::memory_order_acquire);
  }
  const auto* text = reinterpret_cast<const char*>(words);
  std::string name(text, strnlen(text, sizeof(words)));
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  const bool valid = !name.empty() && name.size() <= kMaxBackendName &&
                     std::all_of(name.begin(), name.end(), allowed);
  return valid ? name : "unknown";
}

void ReplicaControl::Ring(std::atomic<uint32_t>* bell) {
  bell->fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(bell);
}

}  // namespace flotilla
