// One kept connection of a load: sends a request, reads the stream of its answer, and is free
// again.
//
// Threads: the io_context's one thread. Ownership: of its socket; whoever starts a request keeps
// the client until its callback has come. Errors: in the answer, in words.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "deploy/launcher/http_client.h"

namespace flotilla {

class StreamClient {
 public:
  struct Answer {
    unsigned status = 0;  // HTTP's; 0: none came
    std::string error;    // of the connection; empty: the answer is whole
  };
  struct Request {
    std::string target, body;
    std::string authorization;  // empty: none
    std::function<void(std::string_view)> on_body;
    std::function<void(const Answer&)> on_end;
  };

  StreamClient(boost::asio::io_context* io, HttpUrl url,
               boost::asio::ip::tcp::resolver::results_type addresses)
      : url_(std::move(url)), addresses_(std::move(addresses)), socket_(*io) {}
  StreamClient(StreamClient&&) = delete;

  // Nothing may be under way.
  void Send(Request request);

 private:
  using Error = boost::system::error_code;
  void Connect();
  void Write();
  void ReadHeader();
  void ReadBody();
  void Fail(const Error& error);
  void End(const Answer& answer);

  const HttpUrl url_;
  const boost::asio::ip::tcp::resolver::results_type addresses_;
  boost::asio::ip::tcp::socket socket_;
  Request request_;
  bool kept_ = false;  // the connection has carried a request before
  boost::beast::http::request<boost::beast::http::string_body> message_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::buffer_body>> parser_;
  std::array<char, 16384> piece_;
};

}  // namespace flotilla
