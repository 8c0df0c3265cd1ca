#include "router/http/http_server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "router/http/http_message.h"
#include "router/http/http_session.h"

namespace flotilla {

using boost::asio::ip::tcp;

HttpServer::HttpServer(HttpOptions options, HttpService* service, const TlsFiles* tls)
    : options_(std::move(options)),
      service_(service),
      tls_(tls),
      bodies_(options_.max_buffered_body_bytes, options_.max_body_bytes_per_s,
              [this](int64_t delta) { service_->OnBodyBytes(delta); }) {}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Take(tcp::socket socket) {
  if (sessions_.size() >= options_.max_connections) {
    service_->OnRefused("max_connections");
    if (MakeRoom()) return Add(std::move(socket));
    if (tls_ != nullptr) return;  // no word is worth a handshake now
    ResponseHead head;
    head.close = true;
    const std::string answer =
        FormatError(Unavailable("Too many connections; try again.", 1000), head);
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(boost::asio::buffer(answer), ignored);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
    return;
  }
  Add(std::move(socket));
}

void HttpServer::Add(tcp::socket socket) {
  auto session = std::make_shared<HttpSession>(this, std::move(socket));
  sessions_.insert(session.get());
  session->Start();
}

bool HttpServer::MakeRoom() {
  if (waiting_.empty()) return false;
  HttpSession* const longest = waiting_.front();
  if (RealClock::Now() - longest->place().since_ns < options_.least_wait_ms * kNsPerMs)
    return false;
  longest->Close();
  return true;
}

void HttpServer::NoteWaiting(HttpSession* session, bool waits) {
  HttpSession::Place& place = session->place();
  std::list<HttpSession*>& from = place.waits ? waiting_ : place.unused;
  std::list<HttpSession*>& to = waits ? waiting_ : place.unused;
  to.splice(to.end(), from, place.at);
  place.waits = waits;
  if (waits) place.since_ns = RealClock::Now();
}

void HttpServer::Forget(HttpSession* session) {
  NoteWaiting(session, false);
  sessions_.erase(session);
}

void HttpServer::BeginDrain() {
  draining_ = true;
  const std::vector<HttpSession*> sessions(sessions_.begin(), sessions_.end());
  for (HttpSession* session : sessions) session->CloseIfIdle();
}

void HttpServer::Stop() {
  const std::vector<HttpSession*> sessions(sessions_.begin(), sessions_.end());
  for (HttpSession* session : sessions) session->Close();
}

bool HttpServer::DropStalledBody() {
  const int64_t now = RealClock::Now();
  const auto stalled = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const HttpSession* each) { return each->BodyStalls(now); });
  if (stalled == waiting_.end()) return false;
  (*stalled)->DropBody();
  return true;
}

size_t HttpServer::answering() const {
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(),
                                           [](const auto* each) { return each->answering(); }));
}

}  // namespace flotilla
