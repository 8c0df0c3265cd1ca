#include "common/http/stream_client.h"

#include <boost/asio/connect.hpp>
#include <utility>

#include "common/base/listen.h"
#include "common/base/tcp_options.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// An answer may pause for minutes: a host that is gone is noticed in half a minute.
constexpr TcpProbes kProbes = {
    .idle_s = 10, .interval_s = 5, .count = 4, .unacknowledged_ms = 30'000};

}  // namespace

void StreamClient::Send(const HttpCall& request, OnHttpBody on_body, OnEnd on_end) {
  on_body_ = std::move(on_body);
  on_end_ = std::move(on_end);
  message_ = {};
  message_.method(http::string_to_verb(request.method));
  message_.target(request.target);
  message_.version(11);
  message_.set(http::field::host, HostPort(url_.host, url_.port));
  message_.set(http::field::user_agent, "flotilla");
  if (!request.authorization.empty())
    message_.set(http::field::authorization, request.authorization);
  if (!request.body.empty()) message_.set(http::field::content_type, "application/json");
  message_.body() = request.body;
  message_.prepare_payload();
  kept_ = stream_.has_value();
  if (kept_)
    Write();
  else
    Connect();
}

void StreamClient::Connect() {
  kept_ = false;
  asio::async_connect(socket_, addresses_, [this](const Error& error, const auto&) {
    if (error) {
      Close();
      return End({.error = error.message(), .connected = false});
    }
    SetTcpOptions(socket_.native_handle(), kProbes);
    const auto executor = socket_.get_executor();
    stream_.emplace(std::exchange(socket_, asio::ip::tcp::socket(executor)), url_.tls);
    Handshake();
  });
}

void StreamClient::Handshake() {
  if (!stream_->needs_handshake()) return Write();
  stream_->AsyncHandshakeWith(url_.host, [this](const Error& error) {
    if (!error) return Write();
    const std::string why = stream_->WhyUntrusted();
    Close();
    End({.error = why.empty() ? error.message()
                              : StrCat("its certificate is not trusted: ", why, " (", url_.trust,
                                       " says whose are)")});
  });
}

void StreamClient::Write() {
  http::async_write(*stream_, message_, [this](const Error& error, size_t) {
    if (error) return Fail(error);
    ReadHeader();
  });
}

void StreamClient::ReadHeader() {
  buffer_.clear();
  parser_.emplace();
  parser_->body_limit(boost::none);
  http::async_read_header(*stream_, buffer_, *parser_, [this](const Error& error, size_t) {
    if (error) return Fail(error);
    ReadBody();
  });
}

void StreamClient::ReadBody() {
  const unsigned status = parser_->get().result_int();
  if (parser_->is_done()) {
    if (!parser_->keep_alive()) Close();
    return End({.status = status});
  }
  parser_->get().body().data = piece_.data();
  parser_->get().body().size = piece_.size();
  http::async_read_some(*stream_, buffer_, *parser_, [this, status](Error error, size_t) {
    if (error == http::error::need_buffer) error = {};
    const size_t size = piece_.size() - parser_->get().body().size;
    if (size > 0 && !on_body_(status, {piece_.data(), size})) {
      Close();
      return End({.status = status});
    }
    if (error) return Fail(error);
    ReadBody();
  });
}

void StreamClient::Close() {
  stream_.reset();
  Error ignored;
  socket_.close(ignored);
}

void StreamClient::Fail(const Error& error) {
  const bool nothing_came = !parser_ || !parser_->got_some();
  Close();
  // The server may close a connection that it has kept just when it is used again.
  if (kept_ && nothing_came) return Connect();
  const unsigned status = parser_ && parser_->is_header_done() ? parser_->get().result_int() : 0;
  End({.status = status, .error = error.message()});
}

void StreamClient::End(const Answer& answer) {
  const OnEnd on_end = std::exchange(on_end_, nullptr);
  on_body_ = nullptr;
  parser_.reset();
  on_end(answer);
}

}  // namespace flotilla
