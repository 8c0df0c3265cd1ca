// HttpConnection over TLS, by OpenSSL itself.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "tests/router/http_client.h"

namespace flotilla {

struct HttpsClient {
  std::string ca_pem;
  std::string cert_pem, key_pem;  // empty: none
  std::string protocol;           // of ALPN; empty: it asks for none
  int max_version = 0;            // 0: the newest
};

class HttpsConnection final : public HttpConnection {
 public:
  HttpsConnection(uint16_t port, const HttpsClient& client);

  // Empty: the handshake is done. With TLS 1.3 a server refuses a client after that.
  const std::string& error() const { return error_; }
  std::string server_certificate() const;  // PEM
  std::string protocol() const;
  bool resumed() const { return SSL_session_reused(ssl_.get()) == 1; }
  // The session, to resume it with; TLS 1.3 gives it with the first answer.
  std::shared_ptr<SSL_SESSION> session() const;
  HttpsConnection(uint16_t port, const HttpsClient& client, SSL_SESSION* session);
  // The server said that it ends, rather than just being gone.
  bool ended_in_order() const {
    return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

 private:
  ssize_t ReadSome(char* out, size_t bytes) override;
  ssize_t WriteSome(const char* data, size_t bytes) override;

  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  std::string error_;
};

}  // namespace flotilla
