// The collective of ranks on several hosts: each two have a TCP connection, over which an operation
// sends its bytes at once, in both directions. The same sums, in the same order, as the
// shared-memory collective's.
//
// Meeting: Reset(epoch) makes all connections anew, so no byte of an older epoch can be read. The
// ranks reach rank 0 at one address, which tells all of them where the others listen. Then every
// message carries what its sender is doing: ranks that are in different operations fail.
//
// A rank that dies closes its connections, which ends everybody's wait: with Aborted once the
// scheduler has begun a new epoch, which it does at once. If it has not after a second, nobody has
// died but the connection: DeadlineExceeded, as for a rank that hangs. An epoch that the scheduler
// has ended ends a wait within 100 ms.
//
// Threads: one. Ownership: `epoch` and the collective's buffers are the caller's. Errors: those of
// shm/collective.h.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "shm/collective.h"
#include "worker_proc/comm/tcp_socket.h"

namespace flotilla {

struct TcpCollectiveOptions {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  TcpAddress address;  // rank 0 listens here, the others connect
  std::string secret;
  WaitPolicy wait;
  int64_t timeout_ns = 30'000'000'000;
  // A death comes by other ways too, to the scheduler; so long it may take.
  int64_t death_known_ns = 1'000'000'000;
  // Of the control segment: newer ones end waits. Null: every rank that is gone has died.
  const std::atomic<uint32_t>* epoch = nullptr;
  void (*on_wait)(void*) = nullptr;  // about every 100 ms of waiting
  void* on_wait_arg = nullptr;
};
// Unavailable: the address can't be listened on.
StatusOr<std::unique_ptr<Collective>> MakeTcpCollective(const TcpCollectiveOptions& options);

}  // namespace flotilla
