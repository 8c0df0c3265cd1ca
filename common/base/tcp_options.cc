#include "common/base/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace flotilla {

void SetTcpOptions(int fd, const TcpProbes& probes) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, probes.idle_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, probes.interval_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes.count);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, probes.unacknowledged_ms);
}

}  // namespace flotilla
