#include "deploy/launcher/http_client.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

}  // namespace

StatusOr<HttpUrl> ParseHttpUrl(const std::string& url) {
  static constexpr std::string_view kScheme = "http://";
  std::string rest = url;
  if (!rest.starts_with(kScheme))
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' does not begin with http://"));
  rest = rest.substr(kScheme.size());
  rest = rest.substr(0, rest.find('/'));
  HttpUrl parts;
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  parts.host = rest.substr(0, colon);
  parts.port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (parts.host.size() >= 2 && parts.host.front() == '[')
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  if (parts.host.empty() || parts.port.empty())
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' has no host or port"));
  return parts;
}

StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpRequest& request,
                            const std::function<bool(std::string_view)>& on_body) {
  boost::system::error_code error;
  asio::io_context io;
  asio::ip::tcp::resolver resolver(io);
  const auto found = resolver.resolve(url.host, url.port, error);
  asio::ip::tcp::socket socket(io);
  if (!error) asio::connect(socket, found, error);
  if (error)
    return absl::UnavailableError(
        absl::StrCat("can't reach ", url.host, ":", url.port, ": ", error.message()));

  http::request<http::string_body> message(http::string_to_verb(request.method), request.target,
                                           11);
  message.set(http::field::host, url.host + ":" + url.port);
  message.set(http::field::user_agent, "flotilla-ask");
  if (!request.authorization.empty())
    message.set(http::field::authorization, request.authorization);
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  message.body() = request.body;
  message.prepare_payload();
  http::write(socket, message, error);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(64 << 20);
  if (!error) http::read_header(socket, buffer, parser, error);
  std::array<char, 4096> piece;
  while (!error && !parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    http::read_some(socket, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    const size_t size = piece.size() - parser.get().body().size;
    if (size > 0 && !on_body(std::string_view(piece.data(), size))) break;
  }
  if (error) return absl::InternalError(absl::StrCat("the connection broke: ", error.message()));
  return parser.get().result_int();
}

StatusOr<HttpAnswer> GetHttp(const HttpUrl& url, const std::string& target,
                             const std::string& api_key) {
  HttpAnswer answer;
  const HttpRequest request = {.target = target, .authorization = BearerToken(api_key)};
  ASSIGN_OR_RETURN(answer.status, SendHttp(url, request, [&](std::string_view bytes) {
                     answer.body.append(bytes);
                     return true;
                   }));
  return answer;
}

std::string BearerToken(const std::string& api_key) {
  return api_key.empty() ? "" : "Bearer " + api_key;
}

}  // namespace flotilla
