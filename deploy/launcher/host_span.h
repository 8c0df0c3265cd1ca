// Which ranks of a replica this host has, and where the hosts of one replica meet.
//
// The head has the scheduler and the first ranks; each of the others is a host of its own
// (`flotilla join`), for which the head runs a proxy. At the join address rank 0 listens for the
// ranks' own collective; rank r's proxy listens r ports above it.
//
// Threads: any (pure). Errors: InvalidArgument naming the flag.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/tcp_address.h"
#include "deploy/launcher/options.h"

namespace flotilla {

struct HostSpan {
  bool joined = false;        // to a head; else this is the head, or all of it
  uint32_t first_rank = 0;    // of the workers here …
  uint32_t local_ranks = 1;   // … and their number
  uint32_t remote_ranks = 0;  // the last ones, each on a host of its own
  TcpAddress join;            // host empty: the replica has one host
  std::string link_secret_file;

  bool several_hosts() const { return !join.host.empty(); }
  bool IsRemote(uint32_t rank) const { return rank >= first_rank + local_ranks; }
  std::string CollectiveAddress() const { return FormatTcpAddress(join); }
  std::string PlanAddress(uint32_t rank) const {
    return FormatTcpAddress({join.host, static_cast<uint16_t>(join.port + rank)});
  }
};

// tp: all ranks of a replica, as far as it is known already (a number in --tp).
StatusOr<HostSpan> SpanOfHead(const ServeOptions& options);
StatusOr<HostSpan> SpanOfJoin(const ServeOptions& options);

}  // namespace flotilla
