#include "common/base/service_notify.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"

namespace flotilla {

ServiceNotifier ServiceNotifier::FromEnvironment() {
  constexpr char kVariable[] = "NOTIFY_SOCKET";
  ServiceNotifier notifier;
  const char* path = std::getenv(kVariable);
  if (path == nullptr) return notifier;
  notifier.socket_ = path;
  unsetenv(kVariable);
  return notifier;
}

void ServiceNotifier::Ready(std::string_view status) const {
  Send("READY=1\nSTATUS=" + std::string(status));
}

void ServiceNotifier::Send(std::string_view message) const {
  if (socket_.empty()) return;
  StatusOr<sockaddr_un> address = UnixAddress(socket_);
  if (!address.ok()) {
    Log().warn("systemd can't be told {}", Kv("reason", std::string(address.status().message())));
    return;
  }
  if (socket_.front() == '@') address->sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
                            reinterpret_cast<const sockaddr*>(&*address), size) < 0)
    Log().warn("systemd can't be told {}", Kv("reason", std::strerror(errno)));
}

}  // namespace flotilla
