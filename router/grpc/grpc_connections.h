// The connections of the router's gRPC port: no more than so many, none that opens calls only to
// reset them, and none that opens more than the router can have.
//
// gRPC 1.51 reads resets as fast as they come, and the calls that it must end, some 50 KB each,
// pile up until memory runs out and nobody else is served (CVE-2023-44487). So twenty times a
// second its own counts (channelz) are looked at. When calls fail faster than
// max_grpc_resets_per_s, each connection that begins and resets them at that rate, or has more open
// than it was allowed, is broken off, with what of it is still unread. While there are more than
// max_grpc_calls, so are those with the most. Their addresses are not let in again for kBarMs.
//
// Units: milliseconds. Threads: the io thread. Ownership: has a copy of each connection's
// descriptor, for a second longer at most than gRPC has it. Errors: none.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"
#include "router/base/router_metrics.h"

namespace flotilla {

struct GrpcConnectionLimits {
  uint32_t max_grpc_connections = 1024;
  uint32_t max_grpc_resets_per_s = 1000;
  uint32_t max_grpc_streams = 1024;  // calls at once on a connection
  uint32_t max_grpc_calls = 5120;    // open at once, of all connections
};

class GrpcConnections {
 public:
  static constexpr int64_t kBarMs = 60'000;

  GrpcConnections(boost::asio::io_context* io, const GrpcConnectionLimits& limits,
                  RouterMetrics* metrics)
      : limits_(limits), metrics_(*metrics), timer_(*io) {}

  // Whose connections are given to `acceptor`, which outlives this.
  void Start(grpc::experimental::ExternalConnectionAcceptor* acceptor) { acceptor_ = acceptor; }
  void Take(boost::asio::ip::tcp::socket socket);
  size_t size() const { return connections_.size(); }
  // Forgets all of them, which goes nobody's way.
  void Stop();

 private:
  using Endpoint = boost::asio::ip::tcp::endpoint;
  struct Counts {
    uint64_t started = 0, succeeded = 0, failed = 0;  // calls so far
    // They are read one after the other, so that more may have ended than had begun.
    uint64_t open() const {
      const uint64_t ended = succeeded + failed;
      return started > ended ? started - ended : 0;
    }
  };
  struct Connection {
    UniqueFd copy;
    int64_t begin_ns = 0;
    int64_t seen_ns = 0;  // 0: never
    Counts seen;
  };

  void LookLater();
  void Look();
  // Connections that gRPC has closed, and who may come in again.
  void Forget();
  // Of those that gRPC serves and this knows.
  std::vector<std::pair<Endpoint, Counts>> CountsOfConnections(
      const std::vector<intptr_t>& servers) const;
  void BreakOffFloods(const std::vector<intptr_t>& servers);
  bool Floods(const Connection& connection, const Counts& now) const;
  void BreakOff(const Endpoint& peer);

  const GrpcConnectionLimits limits_;
  RouterMetrics& metrics_;
  boost::asio::steady_timer timer_;
  grpc::experimental::ExternalConnectionAcceptor* acceptor_ = nullptr;
  std::map<Endpoint, Connection> connections_;
  std::map<boost::asio::ip::address, int64_t> barred_until_ns_;
  uint64_t failed_seen_ = 0;
  uint32_t looks_ = 0;
  bool looking_ = false;
};

}  // namespace flotilla
