// One kept connection to an HTTP server, plain or TLS: sends a request, reads the stream of its
// answer, and is free again (Boost.Beast).
//
// Threads: the io_context's one thread. Ownership: of its socket; whoever starts a request keeps
// the client until its callback has come. Errors: in the answer, in words.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/http/http_client.h"
#include "common/tls/maybe_tls_stream.h"

namespace flotilla {

class StreamClient {
 public:
  struct Answer {
    unsigned status = 0;  // HTTP's; 0: none came
    std::string error =
        {};                 // of the connection; empty: the answer is whole, or all that was wanted
    bool connected = true;  // false: nobody listens
  };
  using OnEnd = std::function<void(const Answer&)>;

  StreamClient(boost::asio::io_context* io, HttpUrl url,
               boost::asio::ip::tcp::resolver::results_type addresses)
      : url_(std::move(url)), addresses_(std::move(addresses)), socket_(*io) {}
  StreamClient(StreamClient&&) = delete;

  // Nothing may be under way.
  void Send(const HttpCall& request, OnHttpBody on_body, OnEnd on_end);

 private:
  using Error = boost::system::error_code;
  void Connect();
  void Handshake();
  void Write();
  void ReadHeader();
  void ReadBody();
  void Close();
  void Fail(const Error& error);
  void End(const Answer& answer);

  const HttpUrl url_;
  const boost::asio::ip::tcp::resolver::results_type addresses_;
  boost::asio::ip::tcp::socket socket_;  // until it is connected
  std::optional<MaybeTlsStream> stream_;
  OnHttpBody on_body_;
  OnEnd on_end_;
  bool kept_ = false;  // the connection has carried a request before
  boost::beast::http::request<boost::beast::http::string_body> message_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::buffer_body>> parser_;
  std::array<char, 16384> piece_;
};

}  // namespace flotilla
