// Backend's gathers on a CUDA device: columns of all ranks put side by side. By the device itself
// where ranks reach each other's memory (kernels/gather.h; CUDA IPC between processes of a host, or
// one process), else by the vendor's library (communicator.h), else through the host's memory and
// the ranks' collective, which is correct everywhere and fast nowhere.
//
// Units: columns, rows, bytes. Threads: the rank's. Ownership: owns its arena and staging memory,
// and what it imported of the others'; an epoch's collective outlives it. Errors: Connect: the
// collective's and the device's; that ranks don't reach each other is none. Run: the collective's
// and the device's. TakeError: Aborted: the epoch is over; DeadlineExceeded: a rank did not come.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shm/collective.h"
#include "worker_proc/cuda/cuda_tensor.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cuda {

// What each rank says, and whether all say so; all of them call it. Errors: the collective's.
StatusOr<std::vector<uint64_t>> OfAllRanks(Collective& collective, uint64_t mine);
StatusOr<bool> AllRanks(Collective& collective, bool mine);

class CudaGather {
 public:
  static constexpr uint32_t kAllRanks = UINT32_MAX;
  static constexpr uint64_t kTimeoutNs = 30'000'000'000;

  // epoch: the replica's, which changes when this one is over; null: it never is.
  // heartbeat: beaten while it waits, as long as it may take.
  CudaGather(Device* device, const std::atomic<uint32_t>* epoch, const Heartbeat& heartbeat = {},
             uint64_t timeout_ns = kTimeoutNs)
      : device_(*device), epoch_(epoch), heartbeat_(heartbeat), timeout_ns_(timeout_ns) {}
  ~CudaGather();
  CudaGather(const CudaGather&) = delete;
  CudaGather& operator=(const CudaGather&) = delete;

  // For wholes of up to so many bytes, the same on all ranks.
  Status Reserve(uint64_t bytes);
  // All ranks, at the beginning of an epoch.
  Status Connect(Collective& collective);
  // Whether exchanges are the device's, and nobody waits for the others when one is begun.
  bool is_queued() const { return by_memory_ || communicator_ != nullptr; }
  // Whether exchanges may be captured. Not the library's: an abort waits until all graphs that have
  // them are gone, and the one that runs waits for the rank that is lost.
  bool may_be_captured() const { return by_memory_; }
  // On a trial nothing is exchanged.
  void set_trial(bool trial) { trial_ = trial; }
  // By what ranks exchange: "device memory", "host memory" or the library's name.
  const char* by() const {
    if (by_memory_) return "device memory";
    return communicator_ == nullptr ? "host memory" : communicator_->name();
  }
  // `root` (or all ranks) gets the columns cols[r] of each rank r's `local` in `out`.
  Status Run(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
             Tensor out);
  // The same for all ranks, and then norm.residual += what was gathered, norm.out = its norm, in
  // one kernel. False: nothing has happened, since these are rows that it is not for, or ranks do
  // not reach each other's memory.
  bool AddNorm(const Collective& collective, std::span<const uint32_t> cols, Tensor local,
               const RmsNormArgs& norm);
  // Rank 0's row comes to all of them, by queued exchanges only; of one rank nothing happens.
  void Broadcast(Tensor row);
  // Until the device has done what it was given, or the epoch is over. Then TakeError.
  void Wait();
  // The same for who waits otherwise: again and again meanwhile.
  void Look();
  Status TakeError();
  uint64_t bytes() const { return arena_.bytes(); }

 private:
  // Between the device and this thread.
  enum Word : uint32_t { kAbort = 0, kFailed = 1 };
  uint32_t* word(Word which) const { return reinterpret_cast<uint32_t*>(words_) + which; }
  Status Export(std::span<std::byte> handle);
  // Of all ranks' handles those that are not this rank's own.
  Status Import(std::span<const std::byte> handles, uint32_t rank);
  void Forget();
  // Of all ranks; false: some do not reach another's memory.
  StatusOr<bool> ConnectMemory(Collective& collective);
  // Of all ranks or none.
  Status JoinCommunicator(Collective& collective);
  bool EpochIsOver() const;
  // Or what is waited for takes too long.
  bool IsOver() const;
  void Fail(const Status& status);
  void Queue(const Collective& collective, std::span<const uint32_t> cols, Tensor local,
             bool receives, Tensor out);
  // Of an exchange by memory.
  GatherArgs MemoryArgs(const Collective& collective, std::span<const uint32_t> cols,
                        Tensor local) const;
  void ByCommunicator(const Collective& collective, std::span<const uint32_t> cols, Tensor local,
                      bool receives, Tensor out);
  Status OnHost(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
                bool receives, Tensor out);

  Device& device_;
  const std::atomic<uint32_t>* const epoch_;
  const Heartbeat heartbeat_;
  const uint64_t timeout_ns_;
  uint64_t slot_bytes_ = 0;
  bool trial_ = false;

  uint32_t epoch_of_connect_ = 0;
  Collective* collective_ = nullptr;  // since Connect
  std::string why_;                   // nothing faster connects the ranks

  // By the device.
  bool by_memory_ = false;
  DeviceBuffer arena_, table_;
  DeviceBuffer counters_;  // of each block, and whether this rank has given up
  GatherChannel few_rows_, many_rows_;
  std::vector<std::byte*> arenas_;  // of each rank
  std::vector<std::byte*> imported_;
  std::byte* words_ = nullptr;  // pinned

  // By the library, which gathers into the arena's slots.
  std::unique_ptr<Communicator> communicator_;
  Status failed_ = OkStatus();

  int64_t waits_since_ns_ = 0;

  std::vector<size_t> counts_;       // bytes of each rank, all rows
  std::vector<uint32_t> broadcast_;  // columns of each rank
  // Through the host.
  std::vector<std::byte> local_, received_, whole_;
};

}  // namespace flotilla::cuda
