// Certificate, key and CA of one side of TLS: PEM files that are checked when they are read, and
// read again when they change. HTTPS, gRPC's servers and its channels all take what is current.
//
// Units: unix seconds. Threads: Load and Reload by one, current() by any. Ownership: what current()
// gave stays as it is for those who hold it, so a connection keeps what it began with.
// Errors: they name the flag and the file; what was loaded before stays.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace flotilla {

struct TlsPaths {
  std::string cert_file;  // the certificate, then those between it and the CA
  std::string key_file;   // of the first certificate, without a passphrase
  std::string ca_file;    // whose certificates the other side must have; may be several
  bool empty() const { return cert_file.empty() && key_file.empty() && ca_file.empty(); }
};

enum class TlsRole {
  kServer,         // needs a certificate
  kClient,         // without a CA those are trusted that the system trusts
  kClientOfOneCa,  // needs a CA
};
// Who reads them, and by which flags: as errors and metrics call the files.
struct TlsSide {
  const char* cert_flag;
  const char* key_flag;
  const char* ca_flag;
  TlsRole role;
};
inline constexpr TlsSide kTlsServer = {"--tls-cert-file", "--tls-key-file", "--tls-client-ca-file",
                                       TlsRole::kServer};
inline constexpr TlsSide kTlsToReplicas = {"--replica-tls-cert-file", "--replica-tls-key-file",
                                           "--replica-tls-ca-file", TlsRole::kClientOfOneCa};
inline constexpr TlsSide kTlsToServer = {"--cert-file", "--key-file", "--ca-file",
                                         TlsRole::kClient};

struct TlsMaterial {
  std::string cert_pem, key_pem, ca_pem;  // empty: none
  int64_t cert_expiry_unix_s = 0;         // of the one in the chain that ends first
  int64_t ca_expiry_unix_s = 0;           // of the last CA, as an old one may stay beside a new one
  // TLS 1.2 or 1.3. A server's: HTTP/1.1; with a CA, clients without a certificate are refused. A
  // client's: a server whose certificate is not trusted is refused.
  std::shared_ptr<ssl_ctx_st> context;
};

class TlsFiles {
 public:
  // `file` is the flag that names it, without dashes before it. Called by Load and Reload, once
  // that file is what current() gives.
  using OnExpiry = std::function<void(const std::string& file, int64_t unix_s)>;
  TlsFiles(const TlsSide& side, TlsPaths paths, OnExpiry on_expiry = nullptr);

  Status Load();
  // As Load, if a file has changed since. False: none has, or what is wrong was told before. Files
  // are replaced one after the other, so what is wrong for the first time is not an error yet.
  StatusOr<bool> Reload();
  // Not before Load.
  std::shared_ptr<const TlsMaterial> current() const;

  const TlsSide& side() const { return side_; }

 private:
  StatusOr<TlsMaterial> Read() const;
  Status CheckPaths() const;
  void Install(TlsMaterial material);

  const TlsSide side_;
  const TlsPaths paths_;
  const OnExpiry on_expiry_;
  std::string last_failure_;  // of Reload
  bool failure_told_ = false;
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_;  // guarded by mutex_
};

}  // namespace flotilla
