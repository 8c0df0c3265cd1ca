// The control segment of one replica: who is alive, in which state, and the epoch. Created by the
// launcher (which survives everyone), mapped by scheduler, workers and detokenizer.
//
// Life of an epoch: a rank dies → the launcher sets its state to kDead and rings → the scheduler
// adds 1 to `epoch`, aborts the collective, forgets all KV, waits until every rank is kLoaded,
// moves their ring cursors (RingWriter::ActivateReader), then sets workers[r].admitted =
// workers[r].incarnation and publishes a Reset plan. A worker reads the step ring only once it is
// admitted. The start of the replica is the same path with epoch 1.
//
// Threads: every field is atomic; each has one writer, named here. Ring() wakes whoever sleeps on
// the scheduler's doorbell: inbox, results, detokenizer and launcher all use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "shm/segment.h"

namespace flotilla {

inline constexpr uint32_t kMaxRanks = 16;

enum class ProcessState : uint32_t {
  kAbsent = 0,    // launcher: never started
  kStarting = 1,  // launcher, before exec
  kLoading = 2,   // process: reads the model
  kLoaded = 3,    // worker: weights ready, waits to be admitted
  kWarmup = 4,    // worker: KV cache and probe
  kReady = 5,     // process
  kStopping = 6,  // process
  kDead = 7,      // launcher, when it reaps it
};
const char* ProcessStateName(ProcessState state);

struct alignas(64) ProcessSlot {
  std::atomic<uint32_t> incarnation;  // launcher: +1 at each start
  std::atomic<uint32_t> state;        // ProcessState; launcher and the process, see above
  std::atomic<uint32_t> pid;          // launcher
  std::atomic<uint32_t> restarts;     // launcher
  std::atomic<int64_t>
      heartbeat_ns;                // process, at least once a second while its loop makes progress
  std::atomic<uint32_t> admitted;  // scheduler: the incarnation that may read the step ring
  std::atomic<uint32_t>
      ready_epoch;  // worker: last epoch whose Reset (KV cache, probe) it has finished
};

inline constexpr size_t kBackendNameWords = 6;
inline constexpr size_t kMaxBackendName = kBackendNameWords * sizeof(uint64_t) - 1;

// What a worker found out while starting; written before kLoaded / kReady, read after.
struct alignas(64) WorkerReport {
  std::atomic<uint64_t> weight_bytes;
  std::atomic<uint64_t> max_kv_pages;  // what fits this rank, 0 until kLoaded
  std::atomic<uint64_t> page_bytes;    // bytes of one KV page on this rank
  std::atomic<uint64_t> probe_hash;    // of the probe's logits bits; rank 0, set before ready_epoch
  std::atomic<uint64_t> backend[kBackendNameWords];  // zero-padded: see SetBackend
};

// What the scheduler last asked of the workers, for a dump when something hangs. Scheduler: all
// fields.
struct alignas(64) BatchReport {
  std::atomic<uint64_t> planned_step, answered_step;
  std::atomic<int64_t> planned_ns;
  std::atomic<uint32_t> rows, tokens;  // of planned_step
  std::atomic<uint32_t> running, waiting;
};

struct ReplicaControlBlock {
  uint64_t magic;
  uint32_t version;
  uint32_t tp_size;
  std::atomic<uint32_t> epoch;     // scheduler
  std::atomic<uint32_t> doorbell;  // anyone: +1 and wake; the scheduler sleeps on it
  std::atomic<uint32_t>
      worker_bell;  // scheduler: +1 and wake; workers waiting to be admitted sleep on it
  std::atomic<uint32_t>
      launcher_bell;  // anyone: +1 and wake; the launcher's replica watcher sleeps on it
  ProcessSlot scheduler;
  ProcessSlot detokenizer;
  ProcessSlot workers[kMaxRanks];
  WorkerReport reports[kMaxRanks];
  BatchReport batch;
};

class ReplicaControl {
 public:
  static StatusOr<ReplicaControl> Create(uint32_t tp_size);
  static StatusOr<ReplicaControl> Map(UniqueFd fd);

  ReplicaControlBlock* operator->() const { return block_; }
  const Segment& segment() const { return segment_; }

  static void SetState(ProcessSlot* slot, ProcessState state) {
    slot->state.store(static_cast<uint32_t>(state), std::memory_order_release);
  }
  static ProcessState State(const ProcessSlot& slot) {
    return static_cast<ProcessState>(slot.state.load(std::memory_order_acquire));
  }
  static void Ring(std::atomic<uint32_t>* bell);

  // The backend's name, at most kMaxBackendName characters of a-z, 0-9 and '-'. What is anything
  // else reads as "unknown".
  static void SetBackend(WorkerReport* report, std::string_view name);
  static std::string BackendName(const WorkerReport& report);

 private:
  ReplicaControl(Segment segment);
  Segment segment_;
  ReplicaControlBlock* block_;
};

}  // namespace flotilla
