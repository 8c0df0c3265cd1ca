// HTTP/1.1, plain or TLS: counts connections and hands each to an HttpSession.
//
// Threads: the io thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <list>
#include <memory>
#include <unordered_set>

#include "common/tls/tls_files.h"
#include "router/http/http_types.h"

namespace flotilla {

class HttpSession;

class HttpServer {
 public:
  // `tls`, if not null, is loaded before the first connection; then all of them are HTTPS.
  HttpServer(HttpOptions options, HttpService* service, const TlsFiles* tls = nullptr);
  ~HttpServer();

  // A new connection.
  void Take(boost::asio::ip::tcp::socket socket);
  // Somebody else takes new connections: every answer that begins from now on closes its own, so
  // that the client opens the next one there. Nothing is refused.
  void BeginLeave() { leaving_ = true; }
  // From now on every answer closes its connection, and idle connections are closed.
  void BeginDrain();
  // Closes everything.
  void Stop();

  const HttpOptions& options() const { return options_; }
  HttpService* service() const { return service_; }
  bool draining() const { return draining_; }
  bool leaving() const { return leaving_; }
  // Of a new connection; null: plain.
  std::shared_ptr<ssl_ctx_st> tls_context() const {
    return tls_ == nullptr ? nullptr : tls_->current()->context;
  }
  size_t connections() const { return sessions_.size(); }
  // Those with a request whose answer has not been sent whole.
  size_t answering() const;
  BodyMemory* bodies() { return &bodies_; }
  // Drops one of the bodies that hardly come, which leaves room for others. False: there is none.
  bool DropStalledBody();
  // From now on the session waits for its client to send or close something, or does not.
  void NoteWaiting(HttpSession* session, bool waits);
  void Forget(HttpSession* session);

 private:
  void Add(boost::asio::ip::tcp::socket socket);
  // Closes who has waited longest for its client. False: nobody has for long.
  bool MakeRoom();

  const HttpOptions options_;
  HttpService* const service_;
  const TlsFiles* const tls_;
  std::unordered_set<HttpSession*> sessions_;
  std::list<HttpSession*> waiting_;  // those that wait for their clients, the longest first
  BodyMemory bodies_;
  bool draining_ = false;
  bool leaving_ = false;
};

}  // namespace flotilla
