#include "deploy/launcher/served/stream_client.h"

#include <boost/asio/connect.hpp>
#include <utility>

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

}  // namespace

void StreamClient::Send(Request request) {
  request_ = std::move(request);
  message_ = {};
  message_.method(http::verb::post);
  message_.target(request_.target);
  message_.version(11);
  message_.set(http::field::host, url_.host + ":" + url_.port);
  message_.set(http::field::user_agent, "flotilla-bench-serve");
  message_.set(http::field::content_type, "application/json");
  if (!request_.authorization.empty())
    message_.set(http::field::authorization, request_.authorization);
  message_.body() = std::move(request_.body);
  message_.prepare_payload();
  kept_ = socket_.is_open();
  if (kept_)
    Write();
  else
    Connect();
}

void StreamClient::Connect() {
  kept_ = false;
  asio::async_connect(socket_, addresses_, [this](const Error& error, const auto&) {
    if (error) return Fail(error);
    Error ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    Write();
  });
}

void StreamClient::Write() {
  http::async_write(socket_, message_, [this](const Error& error, size_t) {
    if (error) return Fail(error);
    ReadHeader();
  });
}

void StreamClient::ReadHeader() {
  buffer_.clear();
  parser_.emplace();
  parser_->body_limit(boost::none);
  http::async_read_header(socket_, buffer_, *parser_, [this](const Error& error, size_t) {
    if (error) return Fail(error);
    ReadBody();
  });
}

void StreamClient::ReadBody() {
  if (parser_->is_done()) {
    if (!parser_->keep_alive()) {
      Error ignored;
      socket_.close(ignored);
    }
    return End({parser_->get().result_int(), ""});
  }
  parser_->get().body().data = piece_.data();
  parser_->get().body().size = piece_.size();
  http::async_read_some(socket_, buffer_, *parser_, [this](Error error, size_t) {
    if (error == http::error::need_buffer) error = {};
    const size_t size = piece_.size() - parser_->get().body().size;
    if (size > 0) request_.on_body({piece_.data(), size});
    if (error) return Fail(error);
    ReadBody();
  });
}

void StreamClient::Fail(const Error& error) {
  const bool nothing_came = !parser_ || !parser_->got_some();
  Error ignored;
  socket_.close(ignored);
  // The server may close a connection that it has kept just when it is used again.
  if (kept_ && nothing_came) return Connect();
  const unsigned status = parser_ && parser_->is_header_done() ? parser_->get().result_int() : 0;
  End({status, error.message()});
}

void StreamClient::End(const Answer& answer) {
  const auto on_end = std::move(request_.on_end);
  request_ = {};
  parser_.reset();
  on_end(answer);
}

}  // namespace flotilla
