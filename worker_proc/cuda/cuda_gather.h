// Backend's gathers on a CUDA device: columns of all ranks put side by side. By the device itself
// where ranks reach each other's memory (peer_memory.h; CUDA IPC between processes of a host, or
// one process), else by the vendor's library (communicator.h), else through the host's memory and
// the ranks' collective, which is correct everywhere and fast nowhere. Where ranks have memory and
// the library, large exchanges go by whichever a measurement found faster (plan/exchange_table.h).
//
// Units: columns, rows, bytes. Threads: the rank's. Ownership: owns its arena and staging memory;
// an epoch's collective outlives it. Errors: Connect: the collective's and the device's; that ranks
// don't reach each other is none. Run: the collective's and the device's. TakeError: Aborted: the
// epoch is over; DeadlineExceeded: a rank did not come.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shm/collective.h"
#include "worker_proc/cuda/cuda_tensor.h"
#include "worker_proc/cuda/peer_memory.h"
#include "worker_proc/cuda/plan/exchange_table.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cuda {

// By what ranks may exchange; the same on all of them but for what says otherwise.
struct ExchangeOptions {
  bool reach_memory = true;  // false, on one rank or all: as if no rank reached another's
  // Smaller ones do not go by the library, where there is another way.
  uint64_t least_by_library = ExchangeTable::kLeastBytes;
  // For tests: what an exchange took, in place of what was measured.
  std::function<int64_t(uint64_t bytes, bool by_library)> time_ns = {};
};

class CudaGather {
 public:
  static constexpr uint32_t kAllRanks = UINT32_MAX;
  static constexpr uint64_t kTimeoutNs = 30'000'000'000;

  struct Options {
    // The replica's, which changes when this one is over; null: it never is.
    const std::atomic<uint32_t>* epoch = nullptr;
    Heartbeat heartbeat = {};  // beaten while it waits, as long as it may take
    uint64_t timeout_ns = kTimeoutNs;
    ExchangeOptions exchange = {};
  };
  // Memory of the device that nobody uses meanwhile, to measure with: one rank's columns, and
  // those of all.
  struct Room {
    std::span<std::byte> local, whole;
  };

  CudaGather(Device* device, const Options& options)
      : device_(*device), options_(options), memory_(device) {}
  ~CudaGather();
  CudaGather(const CudaGather&) = delete;
  CudaGather& operator=(const CudaGather&) = delete;

  // For wholes of up to so many bytes, the same on all ranks.
  Status Reserve(uint64_t bytes);
  // All ranks, at the beginning of an epoch.
  Status Connect(Collective& collective, const Room& room = {});
  // Whether exchanges are the device's, and nobody waits for the others when one is begun.
  bool is_queued() const { return memory_.connected() || communicator_ != nullptr; }
  // Whether exchanges may be captured. Not the library's: an abort waits until all graphs that have
  // them are gone, and the one that runs waits for the rank that is lost.
  bool may_be_captured() const { return memory_.connected(); }
  // What is captured goes by memory, however large. All ranks capture the same.
  void set_captured(bool captured) { captured_ = captured; }
  // On a trial nothing is exchanged.
  void set_trial(bool trial) { trial_ = trial; }
  // By what ranks exchange: "device memory", "host memory" or the library's name.
  const char* by() const;
  uint64_t exchanges_by_library() const { return exchanges_by_library_; }
  // `root` (or all ranks) gets the columns cols[r] of each rank r's `local` in `out`.
  Status Run(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
             Tensor out);
  // The same for all ranks, and then norm.residual += what was gathered, norm.out = its norm, in
  // one kernel. False: nothing has happened, since these are rows that it is not for, or they do
  // not go by memory.
  bool AddNorm(std::span<const uint32_t> cols, Tensor local, const RmsNormArgs& norm);
  // Rank 0's row comes to all of them, by queued exchanges only; of one rank nothing happens.
  void Broadcast(Tensor row);
  // Until the device has done what it was given, or the epoch is over. Then TakeError.
  void Wait();
  // The same for who waits otherwise: again and again meanwhile.
  void Look();
  Status TakeError();
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  void Forget();
  // Of all ranks or none.
  Status JoinCommunicator(Collective& collective);
  // One small exchange: a library connects, and allocates, when it is first used.
  Status TryCommunicator(uint32_t ranks);
  // Ranks that reach each other's memory join the library too, where that is faster for some size.
  Status CompareWithLibrary(Collective& collective, const Room& room);
  // On average, in the best of some rounds of some behind each other.
  StatusOr<int64_t> BestNs(const std::function<void()>& exchange);
  StatusOr<std::vector<ExchangeTime>> Measure(Collective& collective, const Room& room,
                                              uint64_t most);
  bool EpochIsOver() const;
  // Or what is waited for takes too long.
  bool IsOver() const;
  void Fail(const Status& status);
  // Until few enough of the exchanges that were queued are not done.
  void AwaitRoom();
  void LookUntil(const std::function<bool()>& done);
  bool ByLibrary(std::span<const uint32_t> cols, Tensor local) const;
  void Queue(std::span<const uint32_t> cols, Tensor local, bool receives, Tensor out);
  void ByMemory(std::span<const uint32_t> cols, Tensor local, bool receives, Tensor out);
  void ByCommunicator(std::span<const uint32_t> cols, Tensor local, bool receives, Tensor out);
  Status OnHost(Collective& collective, std::span<const uint32_t> cols, Tensor local, uint32_t root,
                bool receives, Tensor out);

  Device& device_;
  const Options options_;
  bool trial_ = false;
  bool captured_ = false;

  uint32_t epoch_of_connect_ = 0;
  Collective* collective_ = nullptr;  // since Connect
  std::string why_;                   // nothing faster connects the ranks

  PeerMemory memory_;
  // One is recorded at each kAtOnce-th exchange, in turn.
  std::array<DeviceEvent, 2> events_ = {};
  uint64_t exchanges_ = 0;
  // By the library, which gathers into the arena.
  std::unique_ptr<Communicator> communicator_;
  Status failed_ = OkStatus();
  uint64_t exchanges_by_library_ = 0;
  // Where there are both.
  ExchangeTable table_;
  bool library_loses_ = false;  // in all sizes, in this epoch or one before

  int64_t waits_since_ns_ = 0;

  std::vector<size_t> counts_;       // bytes of each rank, all rows
  std::vector<uint32_t> broadcast_;  // columns of each rank
  // Through the host.
  std::vector<std::byte> local_, received_, whole_;
};

}  // namespace flotilla::cuda
