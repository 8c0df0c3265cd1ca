// A connection, plain or TLS, behind one interface: an asynchronous stream as Asio and Beast want
// it. Plain costs one comparison a call more than a socket.
//
// Threads: the io thread. Ownership: lives as long as its pending operations. Errors: as Asio's;
// those of TLS itself have the category of asio::ssl.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flotilla {

class MaybeTlsStream {
 public:
  using ErrorCode = boost::system::error_code;
  using Socket = boost::asio::generic::stream_protocol::socket;  // TCP or Unix
  using executor_type = Socket::executor_type;

  // Null: plain. A connection keeps the context that it began with.
  MaybeTlsStream(Socket socket, const std::shared_ptr<SSL_CTX>& context)
      : socket_(std::move(socket)) {
    if (context == nullptr) return;
    tls_.emplace(socket_, SSL_new(context.get()));
    encrypted_ = true;
  }

  executor_type get_executor() { return socket_.get_executor(); }
  // Until the handshake, reads and writes are for nobody.
  bool needs_handshake() const { return encrypted_; }

  // The server's side of it.
  template <typename Handler>
  void AsyncHandshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Before the client's handshake: the protocol that it speaks, as ALPN names it.
  void Offer(std::string_view protocol) {
    std::string list(1, static_cast<char>(protocol.size()));
    list.append(protocol);
    SSL_set_alpn_protos(tls_->native_handle(), reinterpret_cast<const unsigned char*>(list.data()),
                        static_cast<unsigned>(list.size()));
  }
  // The client's, with a server whose certificate must be for `host`, a name or an address.
  template <typename Handler>
  void AsyncHandshakeWith(const std::string& host, Handler&& handler) {
    ErrorCode not_an_address;
    boost::asio::ip::make_address(host, not_an_address);
    if (not_an_address) SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
    tls_->set_verify_callback(boost::asio::ssl::host_name_verification(host));
    tls_->async_handshake(boost::asio::ssl::stream_base::client, std::forward<Handler>(handler));
  }
  // After that failed: what is wrong with the server's certificate; empty: it is not that.
  std::string WhyUntrusted() {
    const long result = tls_ ? SSL_get_verify_result(tls_->native_handle()) : X509_V_OK;
    return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
  }
  // The handshake failed because the client speaks HTTP without TLS. Goes on without it then.
  bool TurnsOutPlain(ErrorCode error) {
    const bool plain = IsTlsError(error) &&
                       ERR_GET_REASON(static_cast<uint32_t>(error.value())) == SSL_R_HTTP_REQUEST;
    if (plain) encrypted_ = false;
    return plain;
  }
  static bool IsTlsError(ErrorCode error) {
    return error.category() == boost::asio::error::get_ssl_category();
  }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (encrypted_)
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (encrypted_)
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

  // Says that nothing more is sent. What the other side still sends can be read, but not what it
  // means: it is not decrypted. `owner` keeps this object until that is said; a read of TLS ends
  // with operation_aborted.
  void EndSending(std::shared_ptr<void> owner) {
    ErrorCode ignored;
    if (!encrypted_) {
      socket_.shutdown(Socket::shutdown_send, ignored);
      return;
    }
    encrypted_ = false;
    socket_.cancel(ignored);
    // As if the client had said the same, for whose word there is no need to wait.
    SSL_set_shutdown(tls_->native_handle(), SSL_RECEIVED_SHUTDOWN);
    tls_->async_shutdown([this, owner = std::move(owner)](ErrorCode) {
      ErrorCode closed;
      socket_.shutdown(Socket::shutdown_send, closed);
    });
  }
  // Pending reads and writes end with operation_aborted.
  void Cancel() {
    ErrorCode ignored;
    socket_.cancel(ignored);
  }
  void Close() {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
  bool encrypted_ = false;
};

}  // namespace flotilla
