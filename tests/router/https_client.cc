#include "tests/router/https_client.h"

#include <openssl/err.h>

#include <csignal>

#include "common/base/check.h"
#include "tests/support/certificates.h"

namespace flotilla {
namespace {

std::shared_ptr<BIO> BioOf(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

TestX509 CertificateOf(const std::string& pem) {
  return {PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr), &X509_free};
}

SSL* NewSsl(const HttpsClient& client) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_security_level(context.get(), 0);  // what the server refuses is the question
  SSL_CTX_set_max_proto_version(context.get(), client.max_version);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  CHECK(X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()),
                            CertificateOf(client.ca_pem).get()) == 1);
  if (!client.cert_pem.empty()) {
    const TestKey key(
        PEM_read_bio_PrivateKey(BioOf(client.key_pem).get(), nullptr, nullptr, nullptr),
        &EVP_PKEY_free);
    CHECK(SSL_CTX_use_certificate(context.get(), CertificateOf(client.cert_pem).get()) == 1);
    CHECK(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
  }
  SSL* const ssl = SSL_new(context.get());
  if (!client.protocol.empty()) {
    const std::string list = static_cast<char>(client.protocol.size()) + client.protocol;
    CHECK(SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(list.data()),
                              static_cast<unsigned int>(list.size())) == 0);
  }
  return ssl;
}

}  // namespace

HttpsConnection::HttpsConnection(uint16_t port, const HttpsClient& client)
    : HttpsConnection(port, client, nullptr) {}

HttpsConnection::HttpsConnection(uint16_t port, const HttpsClient& client, SSL_SESSION* session)
    : HttpConnection(port), ssl_(NewSsl(client), &SSL_free) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to whoever may have gone
  if (session != nullptr) SSL_set_session(ssl_.get(), session);
  SSL_set_fd(ssl_.get(), fd());
  ERR_clear_error();
  if (SSL_connect(ssl_.get()) == 1) return;
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  error_ = reason == nullptr ? "the connection ended" : reason;
}

std::string HttpsConnection::server_certificate() const {
  const TestX509 cert(SSL_get1_peer_certificate(ssl_.get()), &X509_free);
  return PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert.get()); });
}

std::string HttpsConnection::protocol() const {
  const unsigned char* name = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &bytes);
  return std::string(reinterpret_cast<const char*>(name), bytes);
}

std::shared_ptr<SSL_SESSION> HttpsConnection::session() const {
  return {SSL_get1_session(ssl_.get()), &SSL_SESSION_free};
}

ssize_t HttpsConnection::ReadSome(char* out, size_t bytes) {
  return SSL_read(ssl_.get(), out, static_cast<int>(bytes));
}

ssize_t HttpsConnection::WriteSome(const char* data, size_t bytes) {
  return SSL_write(ssl_.get(), data, static_cast<int>(bytes));
}

}  // namespace flotilla
