// How ranks on several hosts meet: a TCP connection whose two ends have proved that they know the
// replica's secret, and which rank, epoch and purpose it is for.
//
// The connecting end says hello with a random number; the accepting end answers with a number of
// its own and the HMAC-SHA256 of both under the secret; the connecting end answers with another of
// them. That keeps strangers and strays of another replica out; what follows is not encrypted, so
// the network between the hosts must be private.
//
// Threads: any. Ownership: values. Errors: PermissionDenied: another secret; FailedPrecondition:
// another version or no rank at all; those of tcp_socket.h.
#pragma once

#include <cstdint>
#include <string>

#include "worker_proc/comm/tcp_socket.h"

namespace flotilla {

enum class LinkPurpose : uint32_t { kCollective = 1, kPlans = 2 };

// Who connects, and what for.
struct LinkHello {
  LinkPurpose purpose = LinkPurpose::kCollective;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  uint32_t epoch = 0;  // kCollective
  uint32_t port = 0;   // kCollective: where the rank itself can be reached
};

struct AcceptedLink {
  UniqueFd fd;
  std::string host;  // numeric
  LinkHello hello;
};

StatusOr<UniqueFd> ConnectLink(const TcpAddress& address, const LinkHello& hello,
                               const std::string& secret, const SocketWait& wait);
// The next connection of anyone; whoever fails the handshake is an error of the call, after which
// it may be called again. A silent one is given up after a second.
StatusOr<AcceptedLink> AcceptLink(int listener, const std::string& secret, const SocketWait& wait);

// The first line of a file that others can't read.
StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace flotilla
