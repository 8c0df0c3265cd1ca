#include "router/discovery/kube_api.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/http/http_client.h"
#include "common/tls/tls_files.h"

namespace flotilla {
namespace {

// As errors call the file of a service account.
constexpr TlsSide kTlsToKube = {"", "", "the service account's ca.crt", TlsRole::kClientOfOneCa};

constexpr size_t kMaxCredentialBytes = 1 << 20;

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
  HttpUrl server = {api_.address.host, api_.address.port};
  HttpCall call = {.target = target};
  if (api_.tls) {
    ASSIGN_OR_RETURN(const std::string token, ReadCredential(api_, "token"));
    call.authorization = BearerToken(token);
    TlsPaths paths;
    paths.ca_file = StrCat(api_.credentials, "/ca.crt");
    TlsFiles files(kTlsToKube, std::move(paths));
    if (const Status loaded = files.Load(); !loaded.ok())
      return absl::UnavailableError(loaded.message());
    server.tls = files.current()->context;
    server.trust = kTlsToKube.ca_flag;
  }
  Status refused;
  const auto on_piece = [&](unsigned status, std::string_view piece) {
    refused = status == 200 ? on_body(piece) : Refusal(status);
    return refused.ok();
  };
  const StatusOr<unsigned> status =
      SendHttp(server, call, on_piece, {.stop = &interrupted_, .timeout_ms = limit.count()});
  RETURN_IF_ERROR(refused);
  if (absl::IsInternal(status.status()))
    return absl::UnavailableError(StrCat("the API server: ", status.status().message()));
  RETURN_IF_ERROR(status.status());
  return *status == 200 ? OkStatus() : Refusal(*status);
}

}  // namespace flotilla
