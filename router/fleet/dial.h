// Connects to an address as flags have it: "host:port", "[v6]:port" or "unix:/path".
//
// Of a name all addresses are tried, one after the other, each for a second. A lookup can take long
// and can't be stopped: it has a thread that nobody waits for.
//
// Threads: those of the executor's, one at a time. Ownership: keeps itself until the handler was
// called or Cancel, which must be before the executor goes. Errors: Unavailable, with the address.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tls/maybe_tls_stream.h"

namespace flotilla {

class Dial : public std::enable_shared_from_this<Dial> {
 public:
  using Socket = MaybeTlsStream::Socket;
  using Handler = std::function<void(StatusOr<Socket>)>;

  // The handler is called once, not from within.
  static std::shared_ptr<Dial> Start(const std::string& address,
                                     boost::asio::any_io_executor executor, Handler handler);
  // The handler is not called any more.
  void Cancel();

 private:
  using Endpoint = Socket::endpoint_type;
  using Endpoints = StatusOr<std::vector<Endpoint>>;
  struct Lookup;

  Dial(std::string address, boost::asio::any_io_executor executor, Handler handler);
  void LookUp();
  void OnEndpoints(Endpoints endpoints);
  void ConnectNext();
  void Finish(StatusOr<Socket> result);

  const std::string address_;
  const boost::asio::any_io_executor executor_;
  Handler handler_;  // empty: it was called, or is not to be
  std::shared_ptr<Lookup> lookup_;
  std::vector<Endpoint> endpoints_;
  size_t next_ = 0;
  std::string failure_;  // of the last endpoint
  Socket socket_;
  boost::asio::steady_timer timer_;
};

}  // namespace flotilla
