#include "worker_proc/comm/tcp_mesh.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/wire.h"

namespace flotilla {
namespace {

constexpr uint32_t kMaxTableBytes = 16 << 10;

// u32 length, then the addresses of ranks 1 and up. A host that is empty is rank 0's.
std::string BuildTable(const std::vector<TcpAddress>& addresses) {
  std::string body;
  WireWriter writer(&body);
  for (const TcpAddress& address : addresses) {
    writer.PutBytes(address.host);
    writer.Put(address.port);
  }
  std::string table;
  WireWriter(&table).PutBytes(body);
  return table;
}

StatusOr<std::vector<TcpAddress>> ReceiveTable(int fd, const TcpCollectiveOptions& options,
                                               const SocketWait& wait) {
  uint32_t size = 0;
  RETURN_IF_ERROR(ReceiveAll(fd, std::as_writable_bytes(std::span(&size, 1)), wait));
  if (size > kMaxTableBytes) return absl::FailedPreconditionError("rank 0's table is too long");
  std::string body(size, '\0');
  RETURN_IF_ERROR(ReceiveAll(fd, std::as_writable_bytes(std::span(body)), wait));
  WireReader reader(body);
  std::vector<TcpAddress> addresses(options.ranks);
  for (uint32_t rank = 1; rank < options.ranks; ++rank) {
    addresses[rank].host = reader.GetBytes();
    if (addresses[rank].host.empty()) addresses[rank].host = options.address.host;
    addresses[rank].port = reader.Get<uint16_t>();
  }
  if (!reader.AtEnd()) return absl::FailedPreconditionError("rank 0's table is malformed");
  return addresses;
}

}  // namespace

TcpMesh::TcpMesh(const TcpCollectiveOptions& options, UniqueFd listener)
    : options_(options), acceptor_(std::move(listener), options.secret), peers_(options.ranks) {}

StatusOr<TcpMesh> TcpMesh::Create(const TcpCollectiveOptions& options) {
  ASSIGN_OR_RETURN(UniqueFd listener, ListenOn(options.rank == 0 ? options.address : TcpAddress{}));
  return TcpMesh(options, std::move(listener));
}

void TcpMesh::Close() {
  for (UniqueFd& peer : peers_) peer.reset();
}

LinkHello TcpMesh::Hello(uint32_t epoch) const {
  return {LinkPurpose::kCollective, options_.rank, options_.ranks, epoch,
          PortOfSocket(acceptor_.listener())};
}

Status TcpMesh::Join(uint32_t epoch, const SocketWait& wait) {
  Close();
  const Status met = Meet(epoch, wait);
  acceptor_.DropPending();  // nobody looks after them until the next time
  return met;
}

Status TcpMesh::Meet(uint32_t epoch, const SocketWait& wait) {
  if (options_.rank == 0) return Gather(epoch, wait);
  ASSIGN_OR_RETURN(const std::vector<TcpAddress> addresses, MeetRankZero(epoch, wait));
  for (uint32_t peer = 1; peer < options_.rank; ++peer) {
    ASSIGN_OR_RETURN(peers_[peer],
                     ConnectLink(addresses[peer], Hello(epoch), options_.secret, wait));
  }
  return AcceptHigher(epoch, wait);
}

StatusOr<AcceptedLink> TcpMesh::AcceptOf(uint32_t epoch, const SocketWait& wait) {
  for (;;) {
    ASSIGN_OR_RETURN(AcceptedLink link, acceptor_.Next(wait));
    const LinkHello& hello = link.hello;
    if (hello.purpose != LinkPurpose::kCollective || hello.ranks != options_.ranks ||
        hello.rank <= options_.rank) {
      Log().warn("collective: a connection of another replica {}", Kv("host", link.host));
      continue;
    }
    if (hello.epoch == epoch) return link;
    if (hello.epoch > epoch) {
      return absl::AbortedError(StrCat("collective: epoch ", epoch, " is over"));
    }
  }
}

Status TcpMesh::Gather(uint32_t epoch, const SocketWait& wait) {
  std::vector<TcpAddress> addresses(options_.ranks - 1);
  const auto missing = [&] {
    return std::find_if(peers_.begin() + 1, peers_.end(), [](const auto& p) { return !p.valid(); });
  };
  while (missing() != peers_.end()) {
    StatusOr<AcceptedLink> link = AcceptOf(epoch, wait);
    if (!link.ok()) {
      return absl::IsDeadlineExceeded(link.status())
                 ? absl::DeadlineExceededError(
                       StrCat("collective: rank ", missing() - peers_.begin(), " did not arrive"))
                 : link.status();
    }
    // A rank of this host may have come by loopback, where only this host finds it.
    addresses[link->hello.rank - 1] = {IsLoopback(link->host) ? "" : link->host,
                                       static_cast<uint16_t>(link->hello.port)};
    peers_[link->hello.rank] = std::move(link->fd);
  }
  const std::string table = BuildTable(addresses);
  for (uint32_t peer = 1; peer < options_.ranks; ++peer) {
    RETURN_IF_ERROR(SendAll(fd(peer), table, wait));
  }
  return OkStatus();
}

// Rank 0 may be in an older epoch yet, and hang up; or die and come back.
StatusOr<std::vector<TcpAddress>> TcpMesh::MeetRankZero(uint32_t epoch, const SocketWait& wait) {
  for (;;) {
    StatusOr<UniqueFd> link = ConnectLink(options_.address, Hello(epoch), options_.secret, wait);
    if (link.ok()) {
      StatusOr<std::vector<TcpAddress>> table = ReceiveTable(link->get(), options_, wait);
      if (table.ok()) {
        peers_[0] = *std::move(link);
        return table;
      }
      link = table.status();
    }
    if (!absl::IsAborted(link.status())) return link.status();
    if (wait.tick) RETURN_IF_ERROR(wait.tick());
    RETURN_IF_ERROR(PollOnce(-1, 0, wait).status());
  }
}

Status TcpMesh::AcceptHigher(uint32_t epoch, const SocketWait& wait) {
  for (uint32_t left = options_.ranks - 1 - options_.rank; left > 0;) {
    ASSIGN_OR_RETURN(AcceptedLink link, AcceptOf(epoch, wait));
    UniqueFd& peer = peers_[link.hello.rank];
    if (!peer.valid()) --left;
    peer = std::move(link.fd);
  }
  return OkStatus();
}

}  // namespace flotilla
