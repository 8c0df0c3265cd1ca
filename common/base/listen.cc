#include "common/base/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace flotilla {
namespace {

constexpr int kAcceptAgainMs = 100;

}  // namespace

StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port, uint16_t* bound_port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    const std::string message = absl::StrCat("can't listen on '", host, "': ", gai_strerror(error));
    return error == EAI_AGAIN ? Status(absl::UnavailableError(message))
                              : Status(absl::InvalidArgumentError(message));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!fd.valid() || bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const std::string message =
        absl::StrCat("can't listen on ", HostPort(host, port), ": ", std::strerror(errno));
    if (errno == EACCES) return absl::PermissionDeniedError(message);
    return errno == EADDRINUSE ? Status(absl::AlreadyExistsError(message))
                               : Status(absl::UnavailableError(message));
  }
  *bound_port = ListeningPort(fd.get());
  return fd;
}

uint16_t ListeningPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  return ntohs(address.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

Status CheckPortFree(const std::string& host, uint16_t port, const std::string& flag) {
  if (port == 0) return OkStatus();
  uint16_t bound = 0;
  Status status = ListenTcp(host, port, &bound).status();
  if (absl::IsAlreadyExists(status))
    return absl::AlreadyExistsError(absl::StrCat("port ", port, " is in use; choose another with ",
                                                 flag, " (0: any free one)"));
  return status;
}

bool OutlastAcceptError(int error) {
  if (error == EINVAL || error == EBADF) return false;
  if (error != EINTR && error != ECONNABORTED) poll(nullptr, 0, kAcceptAgainMs);
  return true;
}

std::string HostPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

bool IsUnixAddress(std::string_view address) { return address.starts_with("unix:"); }

}  // namespace flotilla
