#include "common/http/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/clock.h"
#include "common/base/listen.h"
#include "common/http/stream_client.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;

constexpr size_t kMostBytes = 64 << 20;  // of an answer that is kept
constexpr int64_t kPageMs = 10'000;
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

StatusOr<HttpUrl> ParseHttpUrl(const std::string& url, const TlsPaths& tls) {
  const bool secure = url.starts_with("https://");
  if (!secure && !url.starts_with("http://"))
    return absl::InvalidArgumentError(
        StrCat("'", url, "' does not begin with http:// or https://"));
  if (!secure && !tls.empty()) {
    const char* const flag = !tls.ca_file.empty()     ? kTlsToServer.ca_flag
                             : !tls.cert_file.empty() ? kTlsToServer.cert_flag
                                                      : kTlsToServer.key_flag;
    return absl::InvalidArgumentError(StrCat(flag, " is for a URL that begins with https://"));
  }
  std::string rest = url.substr(url.find("//") + 2);
  rest = rest.substr(0, rest.find('/'));
  HttpUrl parts;
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  parts.host = rest.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : rest.substr(colon + 1);
  uint32_t number = secure ? 443 : 80;
  if (colon != std::string::npos &&
      (!absl::SimpleAtoi(port, &number) || number == 0 || number > UINT16_MAX))
    return absl::InvalidArgumentError(StrCat("'", url, "': '", port, "' is no port"));
  parts.port = static_cast<uint16_t>(number);
  if (parts.host.size() >= 2 && parts.host.front() == '[')
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  if (parts.host.empty()) return absl::InvalidArgumentError(StrCat("'", url, "' has no host"));
  if (!secure) return parts;
  TlsFiles files(kTlsToServer, tls);
  RETURN_IF_ERROR(files.Load());
  parts.tls = files.current()->context;
  return parts;
}

StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpCall& request, const OnHttpBody& on_body,
                            const HttpPatience& patience) {
  asio::io_context io{1};
  boost::system::error_code error;
  const std::string server = HostPort(url.host, url.port);
  auto found = asio::ip::tcp::resolver(io).resolve(url.host, std::to_string(url.port), error);
  const auto failure = [&](const std::string& why) {
    return StrCat("can't reach ", server, ": ", why);
  };
  if (error) return absl::UnavailableError(failure(error.message()));
  StreamClient client(&io, url, std::move(found));
  Status gave_up;
  asio::steady_timer timer(io);
  const int64_t begin_ns = RealClock::Now();
  const std::function<void(boost::system::error_code)> look = [&](boost::system::error_code ended) {
    if (ended) return;
    if (patience.stop != nullptr && patience.stop->load()) {
      gave_up = absl::CancelledError("interrupted");
    } else if (patience.timeout_ms > 0 &&
               RealClock::Now() - begin_ns > patience.timeout_ms * kNsPerMs) {
      gave_up = absl::DeadlineExceededError(
          StrCat(server, " does not answer ", request.target, " within ",
                 static_cast<double>(patience.timeout_ms) / 1000, " s"));
    }
    if (!gave_up.ok()) return io.stop();
    timer.expires_after(kLook);
    timer.async_wait(look);
  };
  if (patience.stop != nullptr || patience.timeout_ms > 0) look({});
  StreamClient::Answer answer;
  client.Send(request, on_body, [&](const StreamClient::Answer& end) {
    answer = end;
    io.stop();
  });
  io.run();
  RETURN_IF_ERROR(gave_up);
  if (!answer.connected) return absl::UnavailableError(failure(answer.error));
  if (!answer.error.empty())
    return absl::InternalError(StrCat("the connection to ", server, " broke: ", answer.error));
  return answer.status;
}

StatusOr<HttpPage> GetHttp(const HttpUrl& url, const std::string& target,
                           const std::string& api_key, const std::atomic<bool>* stop) {
  HttpPage answer;
  const HttpCall request = {.target = target, .authorization = BearerToken(api_key)};
  const auto on_body = [&](unsigned, std::string_view bytes) {
    answer.body.append(bytes);
    return answer.body.size() <= kMostBytes;
  };
  ASSIGN_OR_RETURN(answer.status, SendHttp(url, request, on_body, {stop, kPageMs}));
  if (answer.body.size() > kMostBytes)
    return absl::InternalError(StrCat(target, " is over ", kMostBytes, " bytes"));
  return answer;
}

std::string BearerToken(const std::string& api_key) {
  return api_key.empty() ? "" : "Bearer " + api_key;
}

}  // namespace flotilla
