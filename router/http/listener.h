// A TCP socket that listens, on the io thread: gives each connection to a function, and pauses for
// a moment when descriptors or memory are short. The socket may be shared with another process
// (handoff.h): whoever closes its own copy takes nothing from the other.
//
// Threads: one at a time, once it accepts the io thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

class Listener {
 public:
  using OnConnection = std::function<void(boost::asio::ip::tcp::socket)>;

  explicit Listener(boost::asio::io_context* io) : acceptor_(*io), retry_timer_(*io) {}

  // As ListenTcp. Connections wait until Accept.
  Status Listen(const std::string& host, uint16_t port);
  // One that listens already. InvalidArgument.
  Status Adopt(UniqueFd socket);
  void Accept(OnConnection on_connection);
  void Close();

  bool listening() const { return acceptor_.is_open(); }
  uint16_t port() const { return port_; }
  int socket() { return acceptor_.native_handle(); }

 private:
  void AcceptNext();

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_timer_;
  OnConnection on_connection_;
  uint16_t port_ = 0;
};

}  // namespace flotilla
