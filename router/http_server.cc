#include "router/http_server.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "router/http_message.h"
#include "router/http_session.h"

namespace flotilla {

using boost::asio::ip::tcp;

HttpServer::HttpServer(HttpOptions options, boost::asio::io_context* io, HttpService* service,
                       const TlsFiles* tls)
    : options_(std::move(options)),
      io_(io),
      service_(service),
      tls_(tls),
      acceptor_(*io),
      retry_timer_(*io) {}

HttpServer::~HttpServer() {
  Stop();
  *self_ = nullptr;
}

Status HttpServer::Listen() {
  boost::system::error_code error;
  auto fail = [&](const char* what) {
    return absl::UnavailableError(
        StrCat("can't ", what, " ", options_.host, ":", options_.port, ": ", error.message()));
  };
  tcp::resolver resolver(*io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, error);
  if (error || found.empty()) return fail("resolve");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (error) return fail("open a socket for");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor_.bind(endpoint, error);
  if (error) return fail("listen on");
  acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
  if (error) return fail("listen on");
  port_ = acceptor_.local_endpoint().port();
  Accept();
  return OkStatus();
}

void HttpServer::Accept() {
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (error == boost::asio::error::operation_aborted) return;
    if (!error) {
      OnAccept(std::move(socket));
      Accept();
      return;
    }
    // No descriptors or memory: try again when some are free.
    Log().warn("can't accept {}", Kv("error", error.message()));
    retry_timer_.expires_after(std::chrono::milliseconds(100));
    retry_timer_.async_wait([this](boost::system::error_code cancelled) {
      if (!cancelled) Accept();
    });
  });
}

void HttpServer::OnAccept(tcp::socket socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (sessions_.size() >= options_.max_connections) {
    service_->OnRefused("max_connections");
    if (tls_ != nullptr) return;  // no word is worth a handshake now
    ResponseHead head;
    head.close = true;
    const std::string answer =
        FormatError(Unavailable("Too many connections; try again.", 1000), head);
    socket.non_blocking(true, ignored);
    socket.write_some(boost::asio::buffer(answer), ignored);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
    return;
  }
  auto session = std::make_shared<HttpSession>(this, std::move(socket));
  sessions_.insert(session.get());
  session->Start();
}

void HttpServer::BeginDrain() {
  draining_ = true;
  const std::vector<HttpSession*> sessions(sessions_.begin(), sessions_.end());
  for (HttpSession* session : sessions) session->CloseIfIdle();
}

void HttpServer::Stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  retry_timer_.cancel();
  const std::vector<HttpSession*> sessions(sessions_.begin(), sessions_.end());
  for (HttpSession* session : sessions) session->Close();
}

BodyLease HttpServer::ReserveBody(uint64_t bytes) {
  if (bytes > options_.max_buffered_body_bytes - buffered_body_bytes_) return nullptr;
  TakeBodyBytes(static_cast<int64_t>(bytes));
  return {new BodyRoom, [self = self_, bytes](BodyRoom* room) {
            delete room;
            if (*self != nullptr) (*self)->TakeBodyBytes(-static_cast<int64_t>(bytes));
          }};
}

size_t HttpServer::answering() const {
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(),
                                           [](const auto* each) { return each->answering(); }));
}

void HttpServer::TakeBodyBytes(int64_t delta) {
  buffered_body_bytes_ += static_cast<uint64_t>(delta);
  if (delta != 0) service_->OnBodyBytes(delta);
}

}  // namespace flotilla
