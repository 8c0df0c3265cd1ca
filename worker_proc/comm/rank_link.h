// How ranks on several hosts meet: a TCP connection whose two ends have proved that they know the
// replica's secret, and which rank, epoch and purpose it is for.
//
// The connecting end says hello with a random number; the accepting end answers with a number of
// its own and the HMAC-SHA256 of both under the secret; the connecting end answers with another of
// them. That keeps strangers and strays of another replica out; what follows is not encrypted, so
// the network between the hosts must be private. Strangers that only connect hold nobody up: many
// handshakes are under way at once, for a second at most.
//
// Threads: any; one a LinkAcceptor. Ownership: values. Errors: PermissionDenied: another secret;
// FailedPrecondition: another version or no rank at all; those of tcp_socket.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// handshake_ns: most that it may take once it is connected, for those who wait long for that; 0: as
// `connect` says.
StatusOr<UniqueFd> ConnectLink(const TcpAddress& address, const LinkHello& hello,
                               const std::string& secret, const SocketWait& connect,
                               int64_t handshake_ns = 0);

class LinkAcceptor {
 public:
  LinkAcceptor(UniqueFd listener, std::string secret);
  ~LinkAcceptor();
  LinkAcceptor(LinkAcceptor&&) noexcept;

  int listener() const { return listener_.get(); }
  // The next one whose handshake succeeds; those that fail are logged, at most one a second. Errors
  // of `wait` only.
  StatusOr<AcceptedLink> Next(const SocketWait& wait);
  // Hangs up on everybody whose handshake is not over.
  void DropPending();

 private:
  struct Pending;
  // Takes whoever waits; false: nobody more can be taken now.
  bool TakeAll();
  void Refuse(const std::string& host, const Status& status);
  bool Poll(bool listens, int64_t timeout_ns);

  UniqueFd listener_;
  std::string secret_;
  std::vector<Pending> pending_;
  RepeatedFailure refusals_;
  uint32_t unlogged_ = 0;
};

// The first line of a file that others can't read.
StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace flotilla
