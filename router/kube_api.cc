#include "router/kube_api.h"

#include <netinet/tcp.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using KubeError = boost::system::error_code;
using KubeTls = asio::ssl::stream<beast::tcp_stream>;

constexpr size_t kMaxCredentialBytes = 1 << 20;
constexpr size_t kMaxRefusalBytes = 64 << 10;

StatusOr<std::string> ReadCredential(const KubeApi& api, const char* name) {
  const std::string path = StrCat(api.credentials, "/", name);
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::UnavailableError(StrCat("can't read ", path));
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || text.size() > kMaxCredentialBytes)
    return absl::UnavailableError(StrCat(path, text.empty() ? " is empty" : " is too large"));
  return text;
}

StatusOr<std::unique_ptr<asio::ssl::context>> TlsContext(const KubeApi& api) {
  ASSIGN_OR_RETURN(const std::string ca, ReadCredential(api, "ca.crt"));
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  KubeError error;
  context->add_certificate_authority(asio::buffer(ca), error);
  if (error) return absl::UnavailableError(StrCat(api.credentials, "/ca.crt: ", error.message()));
  context->set_verify_mode(asio::ssl::verify_peer);
  context->set_verify_callback(asio::ssl::host_name_verification(api.address.host));
  return context;
}

// What a status other than 200 means to those who operate a router.
Status Refusal(unsigned status) {
  if (status == 401 || status == 403)
    return absl::PermissionDeniedError(
        StrCat("the API server answers ", status,
               ": the router's service account needs to list and watch endpointslices "
               "(deploy/components/discovery-endpointslice)"));
  if (status == 410) return absl::AbortedError("the API server answers 410: begin with a list");
  return absl::UnavailableError(StrCat("the API server answers ", status));
}

// A watch may say nothing for minutes; a host that is gone says nothing either. Probed, that one is
// noticed in half a minute.
void NoticeSilence(asio::ip::tcp::socket& socket) {
  const int fd = socket.native_handle();
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // milliseconds
}

// One GET over a connection of its own.
template <typename Stream>
class KubeGet {
 public:
  KubeGet(const KubeApi& api, Stream stream, const KubeClient::OnBody& on_body)
      : api_(api), stream_(std::move(stream)), on_body_(on_body) {
    parser_.body_limit(boost::none);  // a watch goes on; on_body_ bounds what it keeps
  }

  void Start(const std::string& target, const std::string& token) {
    request_ = {http::verb::get, target, 11};
    request_.set(http::field::host, FormatTcpAddress(api_.address));
    request_.set(http::field::user_agent, "flotilla-router");
    request_.set(http::field::accept, "application/json");
    request_.set(http::field::connection, "close");
    if (!token.empty()) request_.set(http::field::authorization, "Bearer " + token);
    resolver_.emplace(stream_.get_executor());
    resolver_->async_resolve(
        api_.address.host, std::to_string(api_.address.port), [this](KubeError error, auto found) {
          if (error) return Fail(error);
          beast::get_lowest_layer(stream_).async_connect(found, [this](KubeError failed, auto) {
            if (failed) return Fail(failed);
            OnConnected();
          });
        });
  }

  // Nothing: it has not ended.
  const std::optional<Status>& result() const { return result_; }

 private:
  void OnConnected() {
    NoticeSilence(beast::get_lowest_layer(stream_).socket());
    if constexpr (std::is_same_v<Stream, KubeTls>) {
      KubeError no_address;
      asio::ip::make_address(api_.address.host, no_address);
      if (no_address)  // an address is no server name (RFC 6066)
        SSL_set_tlsext_host_name(stream_.native_handle(), api_.address.host.c_str());
      stream_.async_handshake(asio::ssl::stream_base::client, [this](KubeError error) {
        if (error) return Fail(error);
        Write();
      });
    } else {
      Write();
    }
  }

  void Write() {
    http::async_write(stream_, request_, [this](KubeError error, size_t) {
      if (error) return Fail(error);
      http::async_read_header(stream_, buffer_, parser_, [this](KubeError failed, size_t) {
        if (failed) return Fail(failed);
        status_ = parser_.get().result_int();
        Read();
      });
    });
  }

  void Read() {
    if (parser_.is_done()) return End(status_ == 200 ? OkStatus() : Refusal(status_));
    parser_.get().body().data = piece_.data();
    parser_.get().body().size = piece_.size();
    http::async_read_some(stream_, buffer_, parser_, [this](KubeError error, size_t) {
      const size_t size = piece_.size() - parser_.get().body().size;
      if (error && error != http::error::need_buffer) return Fail(error);
      if (status_ != 200) {
        if ((refused_bytes_ += size) > kMaxRefusalBytes) return End(Refusal(status_));
      } else if (size > 0) {
        if (Status status = on_body_({piece_.data(), size}); !status.ok()) return End(status);
      }
      Read();
    });
  }

  void Fail(KubeError error) {
    End(absl::UnavailableError(
        StrCat("the API server at ", FormatTcpAddress(api_.address), ": ", error.message())));
  }
  void End(Status status) { result_ = std::move(status); }

  const KubeApi& api_;
  Stream stream_;
  const KubeClient::OnBody& on_body_;
  std::optional<asio::ip::tcp::resolver> resolver_;
  http::request<http::empty_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 16384> piece_;
  unsigned status_ = 0;
  size_t refused_bytes_ = 0;
  std::optional<Status> result_;
};

}  // namespace

StatusOr<KubeApi> FindKubeApi(const std::string& url, const std::string& credentials) {
  KubeApi api;
  if (!credentials.empty()) api.credentials = credentials;
  std::string address = url;
  if (url.empty()) {
    const char* const host = std::getenv("KUBERNETES_SERVICE_HOST");
    const char* const port = std::getenv("KUBERNETES_SERVICE_PORT");
    if (host == nullptr || port == nullptr)
      return absl::InvalidArgumentError(
          "this is no pod (KUBERNETES_SERVICE_HOST and _PORT are not set); give --kubernetes-api, "
          "such as http://127.0.0.1:8001 of `kubectl proxy`");
    const std::string_view v6 =
        std::string_view(host).find(':') == std::string_view::npos ? "" : "]";
    address = StrCat("https://", v6.empty() ? "" : "[", host, v6, ":", port);
  }
  const size_t scheme = address.find("://");
  const std::string name = address.substr(0, scheme);
  api.tls = name == "https";
  StatusOr<TcpAddress> parsed =
      ParseTcpAddress(scheme == std::string::npos ? "" : address.substr(scheme + 3));
  if (!parsed.ok() || parsed->port == 0 || (!api.tls && name != "http"))
    return absl::InvalidArgumentError(StrCat("--kubernetes-api: '", address,
                                             "' is no address such as https://10.96.0.1:443, with "
                                             "a port and without a path"));
  api.address = *std::move(parsed);
  return api;
}

StatusOr<std::string> KubeNamespace(const KubeApi& api) { return ReadCredential(api, "namespace"); }

Status KubeClient::Get(const std::string& target, std::chrono::milliseconds limit,
                       const OnBody& on_body) {
  if (!api_.tls) return Run<beast::tcp_stream>(target, "", limit, on_body);
  ASSIGN_OR_RETURN(const std::string token, ReadCredential(api_, "token"));
  ASSIGN_OR_RETURN(const std::unique_ptr<asio::ssl::context> context, TlsContext(api_));
  return Run<KubeTls>(target, token, limit, on_body, *context);
}

// With a context of its own: what is pending when it ends is destroyed with that, and never called.
template <typename Stream, typename... StreamArgument>
Status KubeClient::Run(const std::string& target, const std::string& token,
                       std::chrono::milliseconds limit, const OnBody& on_body,
                       StreamArgument&... argument) {
  asio::io_context io(1);
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_) return absl::CancelledError("interrupted");
    running_ = &io;
  }
  KubeGet<Stream> get(api_, Stream(io, argument...), on_body);
  get.Start(target, token);
  io.run_for(limit);
  const std::lock_guard lock(mutex_);
  running_ = nullptr;
  if (get.result()) return *get.result();
  if (interrupted_) return absl::CancelledError("interrupted");
  return absl::DeadlineExceededError(
      StrCat("the API server has not finished its answer within ", limit.count(), " ms"));
}

void KubeClient::Interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (running_ != nullptr) running_->stop();
}

}  // namespace flotilla
