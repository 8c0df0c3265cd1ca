#include "router/http/listener.h"

#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "common/base/listen.h"
#include "common/base/log.h"

namespace flotilla {

using boost::asio::ip::tcp;

Status Listener::Listen(const std::string& host, uint16_t port) {
  ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(host, port, &port));
  return Adopt(std::move(socket));
}

Status Listener::Adopt(UniqueFd socket) {
  int family = AF_UNSPEC;
  socklen_t size = sizeof(family);
  boost::system::error_code error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &family, &size) == 0)
    acceptor_.assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), socket.get(), error);
  if (error || !acceptor_.is_open())
    return absl::InvalidArgumentError(StrCat("not a socket to accept from: ", error.message()));
  port_ = ListeningPort(socket.release());
  return OkStatus();
}

void Listener::Accept(OnConnection on_connection) {
  on_connection_ = std::move(on_connection);
  AcceptNext();
}

void Listener::AcceptNext() {
  if (!acceptor_.is_open()) return;  // closed when this connection had been accepted
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (error == boost::asio::error::operation_aborted) return;
    if (!error) {
      boost::system::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      on_connection_(std::move(socket));
      AcceptNext();
      return;
    }
    // No descriptors or memory: try again when some are free.
    Log().warn("can't accept {}", Kv("error", error.message()));
    retry_timer_.expires_after(std::chrono::milliseconds(100));
    retry_timer_.async_wait([this](boost::system::error_code cancelled) {
      if (!cancelled) AcceptNext();
    });
  });
}

void Listener::Close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  retry_timer_.cancel();
}

}  // namespace flotilla
