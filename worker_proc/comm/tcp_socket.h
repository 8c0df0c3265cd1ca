// TCP between ranks on different hosts: sockets that never block longer than they may.
//
// A wait ends with DeadlineExceeded at `deadline_ns`, or with what `tick` says, which is called
// about every 100 ms of waiting (a heartbeat, a look at whether the epoch is over). A peer that is
// gone is Aborted: its socket was closed, reset, or acknowledged nothing for 10 s.
//
// Units: bytes; CLOCK_MONOTONIC ns. Threads: any, one a socket and direction. Ownership: UniqueFd.
// Errors: InvalidArgument (address), Unavailable (can't listen), as above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/tcp_address.h"
#include "common/base/unique_fd.h"

namespace flotilla {

struct SocketWait {
  int64_t deadline_ns = INT64_MAX;
  std::function<Status()> tick;  // may be empty
};

// host "": all addresses; port 0: any free one.
StatusOr<UniqueFd> ListenOn(const TcpAddress& address);
uint16_t PortOfSocket(int fd);
// Whether a numeric address is one by which only its own host can be reached.
bool IsLoopback(std::string_view host);
// The address of the socket itself, numeric.
std::string HostOfSocket(int fd);

struct AcceptedSocket {
  UniqueFd fd;
  std::string host;  // the peer's address, numeric
};
// Who waits to be accepted; none: nobody does. Unavailable: no descriptor is left, or the like.
StatusOr<std::optional<AcceptedSocket>> TryAccept(int listener);
StatusOr<AcceptedSocket> AcceptFrom(int listener, const SocketWait& wait);
// Tries again until the name is known and somebody listens at one of its addresses, and says so
// every 10 s.
StatusOr<UniqueFd> ConnectTo(const TcpAddress& address, const SocketWait& wait);

Status SendAll(int fd, std::string_view bytes, const SocketWait& wait);
Status ReceiveAll(int fd, std::span<std::byte> bytes, const SocketWait& wait);

// What fails again and again is logged first after `first_ns`, then every `every_ns`.
class RepeatedFailure {
 public:
  explicit RepeatedFailure(int64_t first_ns, int64_t every_ns = 10'000'000'000);
  bool ShouldLog();

 private:
  int64_t every_ns_;
  int64_t next_ns_;
};

// Waits for `events` of poll(2); true: some are there, false: a tenth of a second has passed.
StatusOr<bool> PollOnce(int fd, short events, const SocketWait& wait);

}  // namespace flotilla
