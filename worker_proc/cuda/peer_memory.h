// Columns exchanged by kernels that reach into the other ranks' memory (kernels/gather.h): this
// rank's arena, which the others import over CUDA IPC or within one process, and theirs.
//
// Units: columns, rows, bytes. Threads: the rank's; the device reads and writes the words.
// Ownership: owns its arena and what it imported. Errors: Reserve: ResourceExhausted. Connect: the
// collective's and the device's; that ranks do not reach each other is none. TakeError: Aborted:
// Abort was called; DeadlineExceeded: a rank did not come.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/collective.h"
#include "worker_proc/cuda/cuda_tensor.h"

namespace flotilla::cuda {

// What each rank says, and whether all say so; all of them call it. Errors: the collective's.
StatusOr<std::vector<uint64_t>> OfAllRanks(Collective& collective, uint64_t mine);
StatusOr<bool> AllRanks(Collective& collective, bool mine);

class PeerMemory {
 public:
  explicit PeerMemory(Device* device) : device_(*device) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // For wholes of up to so many bytes, the same on all ranks.
  Status Reserve(uint64_t bytes);
  // All ranks, at the beginning of an epoch. False, on all of them: some do not reach another's
  // memory, and *why says which. shares: false: this rank's own is kept from the others.
  StatusOr<bool> Connect(Collective& collective, bool shares, std::string* why);
  void Disconnect();
  bool connected() const { return connected_; }

  // The arguments of an exchange, whose `out` is null. Each is given to a kernel once.
  GatherArgs ArgsOf(std::span<const uint32_t> cols, Tensor local, uint64_t timeout_ns) const;
  // slot_bytes() of the arena, for who exchanges otherwise. While ranks are connected, only between
  // a Barrier and the next exchange: until that has been queued, others may read what is there.
  std::byte* staging() const { return arena_.data() + kGatherSlotsAt; }
  void Barrier(uint64_t timeout_ns) const;

  // Exchanges end, those that come too. For the rest of the epoch.
  void Abort();
  bool failed() const;
  Status TakeError() const;
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint64_t bytes() const { return arena_.bytes(); }

 private:
  // Between the device and this thread.
  enum Word : uint32_t { kAbort = 0, kFailed = 1 };
  uint32_t* word(Word which) const { return reinterpret_cast<uint32_t*>(words_) + which; }
  Status Export(std::span<std::byte> handle);
  // Of all ranks' handles those that are not this rank's own.
  Status Import(std::span<const std::byte> handles, uint32_t rank);

  Device& device_;
  uint64_t slot_bytes_ = 0;
  bool connected_ = false;
  uint32_t rank_ = 0;
  DeviceBuffer arena_, table_;
  DeviceBuffer counters_;  // of each block, and whether this rank has given up
  GatherChannel few_rows_, many_rows_;
  std::vector<std::byte*> arenas_;  // of each rank
  std::vector<std::byte*> imported_;
  std::byte* words_ = nullptr;  // pinned
};

}  // namespace flotilla::cuda
