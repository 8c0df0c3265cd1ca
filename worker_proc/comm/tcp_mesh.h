// The connections of a TcpCollective: each rank to each other, made for one epoch.
//
// Threads: one. Ownership: the mesh owns its sockets. Errors: those of rank_link.h; Aborted: the
// epoch is over, a rank is gone or in a newer epoch.
#pragma once

#include <vector>

#include "worker_proc/comm/rank_link.h"
#include "worker_proc/comm/tcp_collective.h"

namespace flotilla {

class TcpMesh {
 public:
  static StatusOr<TcpMesh> Create(const TcpCollectiveOptions& options);

  // Drops what there is and meets the ranks of `epoch`.
  Status Join(uint32_t epoch, const SocketWait& wait);
  void Close();
  int fd(uint32_t peer) const { return peers_[peer].get(); }  // -1: this rank

 private:
  Status Meet(uint32_t epoch, const SocketWait& wait);
  TcpMesh(const TcpCollectiveOptions& options, UniqueFd listener);
  // Rank 0: until every rank is there, then tells all where the others are.
  Status Gather(uint32_t epoch, const SocketWait& wait);
  // Of a rank: says where it listens, and hears where the others do.
  StatusOr<std::vector<TcpAddress>> MeetRankZero(uint32_t epoch, const SocketWait& wait);
  Status AcceptHigher(uint32_t epoch, const SocketWait& wait);
  // The next connection of this epoch; others are dropped.
  StatusOr<AcceptedLink> AcceptOf(uint32_t epoch, const SocketWait& wait);
  LinkHello Hello(uint32_t epoch) const;

  TcpCollectiveOptions options_;
  LinkAcceptor acceptor_;
  std::vector<UniqueFd> peers_;
};

}  // namespace flotilla
