// The HTTP/1.1 listener, plain or TLS: accepts, counts, and hands each connection to an
// HttpSession.
//
// Threads: the io thread. Errors: Listen says which address can't be bound and why; running out of
// descriptors pauses accepting for a moment.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <unordered_set>

#include "common/base/status.h"
#include "common/tls/tls_files.h"
#include "router/http_types.h"

namespace flotilla {

class HttpSession;

class HttpServer {
 public:
  // `tls`, if not null, is loaded before the first connection; then all of them are HTTPS.
  HttpServer(HttpOptions options, boost::asio::io_context* io, HttpService* service,
             const TlsFiles* tls = nullptr);
  ~HttpServer();

  Status Listen();
  uint16_t port() const { return port_; }
  // From now on every answer closes its connection, and idle connections are closed.
  void BeginDrain();
  // Closes everything.
  void Stop();

  const HttpOptions& options() const { return options_; }
  HttpService* service() const { return service_; }
  bool draining() const { return draining_; }
  // Of a new connection; null: plain.
  std::shared_ptr<ssl_ctx_st> tls_context() const {
    return tls_ == nullptr ? nullptr : tls_->current()->context;
  }
  size_t connections() const { return sessions_.size(); }
  // Those with a request whose answer has not been sent whole.
  size_t answering() const;
  // Null: max_buffered_body_bytes are taken. A lease may outlive the server.
  BodyLease ReserveBody(uint64_t bytes);
  void Forget(HttpSession* session) { sessions_.erase(session); }

 private:
  void Accept();
  void TakeBodyBytes(int64_t delta);
  void OnAccept(boost::asio::ip::tcp::socket socket);

  const HttpOptions options_;
  boost::asio::io_context* const io_;
  HttpService* const service_;
  const TlsFiles* const tls_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_timer_;
  std::unordered_set<HttpSession*> sessions_;
  uint64_t buffered_body_bytes_ = 0;
  const std::shared_ptr<HttpServer*> self_ = std::make_shared<HttpServer*>(this);  // null: gone
  uint16_t port_ = 0;
  bool draining_ = false;
};

}  // namespace flotilla
