#include "scheduler_proc/loop/epoch_manager.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "common/base/log.h"

namespace flotilla {

EpochManager::EpochManager(const Options& options, ReplicaControlBlock* control, StepPort* port)
    : options_(options), control_(control), port_(port) {
  CHECK(options.tp_size >= 1 && options.tp_size <= kMaxRanks);
  control_->epoch.store(epoch_, std::memory_order_release);
}

StatusOr<EpochManager::Event> EpochManager::Poll(int64_t now_ns) {
  Event event = Event::kNone;
  if (state_ != State::kWaitLoaded) {
    for (uint32_t r = 0; r < options_.tp_size; ++r) {
      if (!Lost(r)) continue;
      if (state_ == State::kServing) event = Event::kLost;
      Restart(StrCat("rank ", r, " is gone"));
      break;
    }
  }
  if (state_ == State::kWaitReady) {
    if (AllReady()) {
      state_ = State::kServing;
      ready_deadline_ns_ = INT64_MAX;
      return Event::kBegan;
    }
    if (now_ns >= ready_deadline_ns_) Restart("not every rank became ready in time");
  }
  if (state_ == State::kWaitLoaded) {
    DropDeadReaders();
    bool all = true;
    for (uint32_t r = 0; r < options_.tp_size; ++r) all = all && CanJoin(r);
    if (all) RETURN_IF_ERROR(AdmitAll(now_ns));
  }
  return event;
}

void EpochManager::Restart(const std::string& reason) {
  ++epoch_;
  Log().warn("new epoch {} {}", Kv("epoch", epoch_), Kv("reason", reason));
  control_->epoch.store(epoch_, std::memory_order_release);
  port_->AbortCollective(epoch_);
  state_ = State::kWaitLoaded;
  ready_deadline_ns_ = INT64_MAX;
}

// A rank of the running epoch that is dead, or another process than the one admitted.
bool EpochManager::Lost(uint32_t rank) const {
  const ProcessSlot& slot = control_->workers[rank];
  return ReplicaControl::State(slot) == ProcessState::kDead ||
         slot.incarnation.load(std::memory_order_acquire) !=
             slot.admitted.load(std::memory_order_relaxed);
}

// Loaded and not admitted yet, or a survivor of the last epoch. The state of one incarnation can
// be seen with the number of another for a moment; neither case then holds, and the next bell
// settles it.
bool EpochManager::CanJoin(uint32_t rank) const {
  const ProcessSlot& slot = control_->workers[rank];
  const uint32_t incarnation = slot.incarnation.load(std::memory_order_acquire);
  const bool admitted = incarnation == slot.admitted.load(std::memory_order_relaxed);
  const ProcessState state = ReplicaControl::State(slot);
  if (!admitted) return state == ProcessState::kLoaded;
  return state == ProcessState::kReady || state == ProcessState::kWarmup ||
         state == ProcessState::kLoaded;
}

void EpochManager::DropDeadReaders() {
  for (uint32_t r = 0; r < options_.tp_size; ++r) {
    ProcessSlot& slot = control_->workers[r];
    if (slot.admitted.load(std::memory_order_relaxed) != 0 && Lost(r)) {
      port_->DeactivateReader(r);
      slot.admitted.store(0, std::memory_order_release);
    }
  }
}

Status EpochManager::AdmitAll(int64_t now_ns) {
  uint64_t pages = std::numeric_limits<uint32_t>::max();
  for (uint32_t r = 0; r < options_.tp_size; ++r)
    pages = std::min(pages, control_->reports[r].max_kv_pages.load(std::memory_order_acquire));
  if (num_pages_ == 0) {
    if (pages == 0)
      return absl::ResourceExhaustedError(
          "there is no memory for a single KV page; raise --kv-cache-memory or free memory");
    num_pages_ = static_cast<uint32_t>(pages);
  } else if (pages < num_pages_) {
    return absl::ResourceExhaustedError(StrCat("a restarted rank has memory for ", pages,
                                               " KV pages, the replica needs ", num_pages_));
  }
  for (uint32_t r = 0; r < options_.tp_size; ++r) {
    ProcessSlot& slot = control_->workers[r];
    const uint32_t incarnation = slot.incarnation.load(std::memory_order_acquire);
    if (slot.admitted.load(std::memory_order_relaxed) == incarnation) continue;
    port_->ActivateReader(r);
    slot.admitted.store(incarnation, std::memory_order_release);
  }
  ReplicaControl::Ring(&control_->worker_bell);
  StepPlan reset;
  reset.epoch = epoch_;
  reset.command = StepCommand::kReset;
  reset.num_pages = num_pages_;
  const Status published = port_->Publish(reset);
  if (!published.ok()) {
    Restart(StrCat("reset was not taken: ", published.message()));
    return OkStatus();
  }
  ready_deadline_ns_ = now_ns + options_.ready_timeout_ns;
  state_ = State::kWaitReady;
  return OkStatus();
}

bool EpochManager::AllReady() const {
  for (uint32_t r = 0; r < options_.tp_size; ++r) {
    const ProcessSlot& slot = control_->workers[r];
    if (slot.ready_epoch.load(std::memory_order_acquire) != epoch_ ||
        ReplicaControl::State(slot) != ProcessState::kReady)
      return false;
  }
  return true;
}

int64_t EpochManager::NextDeadlineNs() const { return ready_deadline_ns_; }

}  // namespace flotilla
