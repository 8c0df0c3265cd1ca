#include "common/rpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <mutex>
#include <string>
#include <vector>

namespace flotilla {
namespace {

class FetchedCredentials final : public grpc::ServerCredentials {
 public:
  explicit FetchedCredentials(const TlsFiles* files) : files_(files) {}

  // No call is authenticated by metadata here.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // What a port was given last: "unchanged" is said of a port, so each has credentials of its own.
  struct Port {
    const TlsFiles* files;
    std::mutex mutex;
    std::shared_ptr<const TlsMaterial> given;  // guarded by mutex
  };

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* user_data, grpc_ssl_server_certificate_config** config) {
    Port& port = *static_cast<Port*>(user_data);
    std::shared_ptr<const TlsMaterial> now = port.files->current();
    std::lock_guard<std::mutex> lock(port.mutex);
    if (now == port.given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key_pem.c_str(), now->cert_pem.c_str()};
    // gRPC core wants some CA even where clients are asked for nothing.
    const std::string& ca_pem = now->ca_pem.empty() ? now->cert_pem : now->ca_pem;
    *config = grpc_ssl_server_certificate_config_create(ca_pem.c_str(), &pair, 1);
    port.given = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    ports_.push_back(std::make_unique<Port>());
    ports_.back()->files = files_;
    const auto demand = files_->current()->ca_pem.empty()
                            ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(demand, &Fetch,
                                                                        ports_.back().get()));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  const TlsFiles* const files_;
  std::vector<std::unique_ptr<Port>> ports_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files) {
  if (files == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<FetchedCredentials>(files);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const std::shared_ptr<const TlsMaterial>& material) {
  if (material == nullptr) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = material->ca_pem;
  options.pem_private_key = material->key_pem;
  options.pem_cert_chain = material->cert_pem;
  return grpc::SslCredentials(options);
}

}  // namespace flotilla
