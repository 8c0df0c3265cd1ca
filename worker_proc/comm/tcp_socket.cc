#include "worker_proc/comm/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/tcp_options.h"

namespace flotilla {
namespace {

constexpr int64_t kSocketTickNs = 100 * kNsPerMs;
constexpr int kBacklog = 128;
// Before this nothing is said of it: who is looked for may have begun at the same time.
constexpr int64_t kUnreachedNs = 2 * kNsPerSecond;
constexpr TcpProbes kProbes = {
    .idle_s = 2, .interval_s = 2, .count = 4, .unacknowledged_ms = 10'000};

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

StatusOr<AddressList> Look(const TcpAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* const host = address.host.empty() ? nullptr : address.host.c_str();
  const int error = getaddrinfo(host, std::to_string(address.port).c_str(), &hints, &found);
  // Of a host that starts at the same time DNS may not know yet.
  const bool unknown = error == EAI_NONAME || error == EAI_NODATA;
  const bool may_come = unknown && (flags & AI_PASSIVE) == 0;
  if (error == EAI_AGAIN || may_come) {
    return absl::UnavailableError(StrCat("'", address.host, "': ", gai_strerror(error)));
  }
  if (error != 0) {
    return absl::InvalidArgumentError(StrCat("'", address.host, "': ", gai_strerror(error)));
  }
  return AddressList(found, freeaddrinfo);
}

Status Gone() { return absl::AbortedError("the peer is gone"); }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// One attempt; Unavailable: nobody listens there yet.
StatusOr<UniqueFd> TryAddress(const addrinfo& to, const SocketWait& wait) {
  UniqueFd fd(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::UnavailableError(std::strerror(errno));
  SetTcpOptions(fd.get(), kProbes);
  int error = connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const SocketWait attempt{std::min(wait.deadline_ns, RealClock::Now() + kNsPerSecond),
                             wait.tick};
    for (bool ready = false; !ready;) {
      StatusOr<bool> polled = PollOnce(fd.get(), POLLOUT, attempt);
      if (absl::IsDeadlineExceeded(polled.status())) {
        return absl::UnavailableError("no answer within a second");
      }
      ASSIGN_OR_RETURN(ready, std::move(polled));
    }
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return fd;
}

// One at each address that the name has.
StatusOr<UniqueFd> TryConnect(const TcpAddress& address, const SocketWait& wait) {
  ASSIGN_OR_RETURN(const AddressList found, Look(address, 0));
  StatusOr<UniqueFd> fd = absl::UnavailableError("the name has no address");
  for (const addrinfo* to = found.get(); to != nullptr && absl::IsUnavailable(fd.status());
       to = to->ai_next) {
    fd = TryAddress(*to, wait);
  }
  return fd;
}

// Invalid, and errno says why: it can't be had.
UniqueFd TryListen(const addrinfo& to) {
  UniqueFd fd(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (to.ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (fd.valid() && bind(fd.get(), to.ai_addr, to.ai_addrlen) == 0 &&
      listen(fd.get(), kBacklog) == 0)
    return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

// An IPv4 peer of an IPv6 listener is "::ffff:10.0.0.1".
std::string_view WithoutMapping(std::string_view host) {
  constexpr std::string_view kMapped = "::ffff:";
  const bool mapped = host.starts_with(kMapped) && host.find('.') != std::string_view::npos;
  return mapped ? host.substr(kMapped.size()) : host;
}

std::string Numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
              NI_NUMERICHOST);
  return std::string(WithoutMapping(host));
}

}  // namespace

StatusOr<UniqueFd> ListenOn(const TcpAddress& address) {
  ASSIGN_OR_RETURN(const AddressList found, Look(address, AI_PASSIVE));
  const addrinfo* const first = found.get();
  // Of all addresses "::" comes second, but it takes the peers of both families.
  if (address.host.empty()) {
    for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
      if (each->ai_family != AF_INET6) continue;
      if (UniqueFd fd = TryListen(*each); fd.valid()) return fd;
    }
  }
  if (UniqueFd fd = TryListen(*first); fd.valid()) return fd;
  return absl::UnavailableError(
      StrCat("can't listen on ", FormatTcpAddress(address), ": ", std::strerror(errno)));
}

RepeatedFailure::RepeatedFailure(int64_t first_ns, int64_t every_ns)
    : every_ns_(every_ns), next_ns_(RealClock::Now() + first_ns) {}

bool RepeatedFailure::ShouldLog() {
  const int64_t now_ns = RealClock::Now();
  if (now_ns < next_ns_) return false;
  next_ns_ = now_ns + every_ns_;
  return true;
}

uint16_t PortOfSocket(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

bool IsLoopback(std::string_view host) { return host.starts_with("127.") || host == "::1"; }

std::string HostOfSocket(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return Numeric(address, size);
}

StatusOr<bool> PollOnce(int fd, short events, const SocketWait& wait) {
  const int64_t now_ns = RealClock::Now();
  if (now_ns >= wait.deadline_ns) return absl::DeadlineExceededError("the peer did not answer");
  pollfd entry{fd, events, 0};
  const int64_t timeout_ns = std::min(kSocketTickNs, wait.deadline_ns - now_ns);
  const int count = poll(&entry, 1, static_cast<int>((timeout_ns + kNsPerMs - 1) / kNsPerMs));
  if (count > 0) return true;
  if (wait.tick) RETURN_IF_ERROR(wait.tick());
  return false;
}

StatusOr<std::optional<AcceptedSocket>> TryAccept(int listener) {
  for (;;) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    UniqueFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      SetTcpOptions(fd.get(), kProbes);
      return AcceptedSocket{std::move(fd), Numeric(address, size)};
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (WouldBlock(errno)) return std::nullopt;
    return absl::UnavailableError(StrCat("accept: ", std::strerror(errno)));
  }
}

StatusOr<AcceptedSocket> AcceptFrom(int listener, const SocketWait& wait) {
  for (;;) {
    ASSIGN_OR_RETURN(std::optional<AcceptedSocket> socket, TryAccept(listener));
    if (socket.has_value()) return *std::move(socket);
    RETURN_IF_ERROR(PollOnce(listener, POLLIN, wait).status());
  }
}

StatusOr<UniqueFd> ConnectTo(const TcpAddress& address, const SocketWait& wait) {
  for (RepeatedFailure failure(kUnreachedNs);;) {
    StatusOr<UniqueFd> fd = TryConnect(address, wait);
    if (!absl::IsUnavailable(fd.status())) return fd;
    if (failure.ShouldLog()) {
      Log().warn("can't reach it yet, trying on {} {}", Kv("address", FormatTcpAddress(address)),
                 Kv("reason", std::string(fd.status().message())));
    }
    // Nothing to wait for but time: a descriptor that is never ready.
    const Status waited = PollOnce(-1, 0, wait).status();
    if (absl::IsDeadlineExceeded(waited)) {
      return absl::DeadlineExceededError(
          StrCat("can't reach ", FormatTcpAddress(address), ": ", fd.status().message()));
    }
    RETURN_IF_ERROR(waited);
  }
}

Status SendAll(int fd, std::string_view bytes, const SocketWait& wait) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (!WouldBlock(errno)) return Gone();
    RETURN_IF_ERROR(PollOnce(fd, POLLOUT, wait).status());
  }
  return OkStatus();
}

Status ReceiveAll(int fd, std::span<std::byte> bytes, const SocketWait& wait) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
      continue;
    }
    if (got == 0 || !WouldBlock(errno)) return Gone();
    RETURN_IF_ERROR(PollOnce(fd, POLLIN, wait).status());
  }
  return OkStatus();
}

}  // namespace flotilla
