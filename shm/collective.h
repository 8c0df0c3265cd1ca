// Collectives between the tensor-parallel ranks of a replica, over the host's memory; what GPUs
// exchange among themselves is worker_proc/cuda/cuda_gather.h's.
//
// Every rank calls the same operations in the same order with the same sizes. An operation is
// exact: all-reduce adds contributions in rank order (0 + 1 + 2 …) on every rank, so all ranks get
// the same bits.
//
// Generations: the scheduler numbers epochs; Reset(epoch) (re)joins one. Abort(epoch) of a newer
// epoch, seen in shared memory, ends every wait of an older one with Aborted. A wait also ends with
// DeadlineExceeded after the collective's timeout. After either, the outputs are undefined and the
// rank must Reset to the next epoch before it calls again. A rank killed or stopped at any
// instruction can make others fail that way, never give a wrong sum.
//
// Threads: one thread a rank. Ownership: buffers are the caller's, alive during the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "shm/futex.h"
#include "shm/segment.h"

namespace flotilla {

class Collective {
 public:
  virtual ~Collective() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;

  // data[i] = sum over ranks, added in rank order.
  virtual Status AllReduceSum(std::span<float> data) = 0;
  // Rank r contributes counts[r] bytes; `out` receives all of them in rank order. `in` may lie at
  // its place inside `out`. Uneven counts are the norm (9 heads on 2 ranks).
  virtual Status AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                           std::span<std::byte> out) = 0;
  // As AllGather, but only `root` receives (out is ignored elsewhere).
  virtual Status Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                        std::span<std::byte> out, uint32_t root) = 0;
  virtual Status Broadcast(std::span<std::byte> data, uint32_t root) = 0;
  virtual Status Barrier() = 0;

  // Joins `epoch` (all ranks do); waits for the others until the timeout.
  virtual Status Reset(uint32_t epoch) = 0;
};

// Bytes of a segment for `ranks` ranks with `buffer_bytes` of staging each; longer operations go
// through it in pieces.
size_t CollectiveSegmentBytes(uint32_t ranks, size_t buffer_bytes);
Status InitCollective(const Segment& segment, uint32_t ranks, size_t buffer_bytes);

// By the scheduler (not a rank): ends all waits of epochs before `epoch`.
void AbortCollective(const Segment& segment, uint32_t epoch);

struct ShmCollectiveOptions {
  uint32_t rank = 0;
  WaitPolicy wait;  // spin only if ranks ≤ cores
  int64_t timeout_ns = 30'000'000'000;
  // Called about every 100 ms of waiting: the rank's heartbeat.
  void (*on_wait)(void*) = nullptr;
  void* on_wait_arg = nullptr;
};
StatusOr<std::unique_ptr<Collective>> AttachShmCollective(const Segment* segment,
                                                          const ShmCollectiveOptions& options);

// One rank: every operation is a copy or nothing.
std::unique_ptr<Collective> MakeSingleRankCollective();

}  // namespace flotilla
