#include "common/tls/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/log.h"

namespace flotilla {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

BioPtr BioOf(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

// What OpenSSL says of its last failure.
std::string SslReason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

// A file as it was read, and what names it.
struct PemFile {
  const char* flag;
  const std::string& path;
  const std::string& text;
};

Status Wrong(const PemFile& file, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(file.flag, ": ", file.path, " ", what));
}

// Empty for an empty path.
StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  std::string text;
  if (path.empty()) return text;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4096> piece;
  while (text.size() <= kMaxPemBytes && (file.read(piece.data(), piece.size()), file.gcount() > 0))
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad())
    return absl::NotFoundError(StrCat(flag, ": can't read ", path, ": ", std::strerror(errno)));
  if (text.size() > kMaxPemBytes)
    return Wrong({flag, path, text}, StrCat("has more than ", kMaxPemBytes, " bytes"));
  return text;
}

StatusOr<std::vector<X509Ptr>> Certificates(const PemFile& file) {
  ERR_clear_error();
  const BioPtr bio = BioOf(file.text);
  std::vector<X509Ptr> out;
  while (X509* each = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))
    out.emplace_back(each, &X509_free);
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = SslReason();
  if (!at_end) return Wrong(file, StrCat("is no valid PEM: ", reason));
  if (out.empty()) return Wrong(file, "has no certificate in PEM");
  return out;
}

int64_t ExpiryOf(const X509& certificate) {
  tm broken_down = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &broken_down) != 1) return 0;
  return timegm(&broken_down);
}

// Nobody is there to be asked for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

StatusOr<KeyPtr> PrivateKey(const PemFile& file) {
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(BioOf(file.text).get(), nullptr, &NoPassphrase, nullptr),
             &EVP_PKEY_free);
  const std::string reason = SslReason();
  if (key != nullptr) return key;
  if (file.text.find("PRIVATE KEY-----") == file.text.npos)
    return Wrong(file, "has no private key in PEM");
  if (file.text.find("ENCRYPTED") != file.text.npos)
    return Wrong(file, "needs a passphrase; give a key without one");
  return Wrong(file, StrCat("is no valid private key: ", reason));
}

// HTTP/1.1 is all that there is here; a client that asks for other protocols only is refused.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void*) {
  static constexpr std::string_view kHttp11 = "http/1.1";
  for (unsigned int i = 0; i < offered_bytes; i += 1u + offered[i]) {
    const std::string_view each(reinterpret_cast<const char*>(offered) + i + 1, offered[i]);
    if (each != kHttp11) continue;
    *out = offered + i + 1;
    *out_bytes = offered[i];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

std::shared_ptr<SSL_CTX> NewContext(TlsRole role) {
  const bool server = role == TlsRole::kServer;
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()),
                                   &SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  if (!server) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    return context;
  }
  // Sessions are kept by clients, in tickets, or by nobody.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), &SelectProtocol, nullptr);
  return context;
}

bool Trust(SSL_CTX* context, const std::vector<X509Ptr>& authorities) {
  return std::all_of(authorities.begin(), authorities.end(), [&](const X509Ptr& each) {
    return X509_STORE_add_cert(SSL_CTX_get_cert_store(context), each.get()) == 1;
  });
}

// Clients must have a certificate of one of these, and show it for each connection: no resuming.
bool DemandCertificates(SSL_CTX* context, const std::vector<X509Ptr>& authorities) {
  if (!Trust(context, authorities)) return false;
  for (const X509Ptr& each : authorities)
    if (SSL_CTX_add_client_CA(context, each.get()) != 1) return false;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  return SSL_CTX_set_num_tickets(context, 0) == 1;
}

bool UseChain(SSL_CTX* context, const std::vector<X509Ptr>& chain) {
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) return false;
  return std::all_of(chain.begin() + 1, chain.end(), [&](const X509Ptr& each) {
    return SSL_CTX_add1_chain_cert(context, each.get()) == 1;
  });
}

bool SameFiles(const TlsMaterial& a, const TlsMaterial& b) {
  return a.cert_pem == b.cert_pem && a.key_pem == b.key_pem && a.ca_pem == b.ca_pem;
}

Status CheckPair(const PemFile& cert, const PemFile& key_file, TlsMaterial* material) {
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, Certificates(cert));
  ASSIGN_OR_RETURN(const KeyPtr key, PrivateKey(key_file));
  SSL_CTX* const context = material->context.get();
  if (!UseChain(context, chain)) return Wrong(cert, StrCat("is refused: ", SslReason()));
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    ERR_clear_error();
    return Wrong(key_file, StrCat("is not the key of the certificate in ", cert.path));
  }
  material->cert_expiry_unix_s = ExpiryOf(*chain.front());
  for (const X509Ptr& each : chain)
    material->cert_expiry_unix_s = std::min(material->cert_expiry_unix_s, ExpiryOf(*each));
  return OkStatus();
}

Status CheckAuthorities(TlsRole role, const PemFile& file, TlsMaterial* material) {
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities, Certificates(file));
  const auto use = role == TlsRole::kServer ? &DemandCertificates : &Trust;
  if (!use(material->context.get(), authorities))
    return Wrong(file, StrCat("is refused: ", SslReason()));
  for (const X509Ptr& each : authorities)
    material->ca_expiry_unix_s = std::max(material->ca_expiry_unix_s, ExpiryOf(*each));
  return OkStatus();
}

// The rest of `material` from its texts.
Status Check(const TlsSide& side, const TlsPaths& paths, TlsMaterial* material) {
  material->context = NewContext(side.role);
  if (!paths.cert_file.empty()) {
    RETURN_IF_ERROR(CheckPair({side.cert_flag, paths.cert_file, material->cert_pem},
                              {side.key_flag, paths.key_file, material->key_pem}, material));
  }
  if (paths.ca_file.empty()) {
    if (side.role == TlsRole::kClient) SSL_CTX_set_default_verify_paths(material->context.get());
    return OkStatus();
  }
  return CheckAuthorities(side.role, {side.ca_flag, paths.ca_file, material->ca_pem}, material);
}

}  // namespace

TlsFiles::TlsFiles(const TlsSide& side, TlsPaths paths, OnExpiry on_expiry)
    : side_(side), paths_(std::move(paths)), on_expiry_(std::move(on_expiry)) {}

Status TlsFiles::CheckPaths() const {
  const auto needs = [](const char* flag, const char* other) {
    return absl::InvalidArgumentError(StrCat(flag, " needs ", other));
  };
  if (!paths_.cert_file.empty() && paths_.key_file.empty())
    return needs(side_.cert_flag, side_.key_flag);
  if (!paths_.key_file.empty() && paths_.cert_file.empty())
    return needs(side_.key_flag, side_.cert_flag);
  if (side_.role == TlsRole::kServer && paths_.cert_file.empty())
    return needs(side_.ca_flag, side_.cert_flag);
  if (side_.role == TlsRole::kClientOfOneCa && paths_.ca_file.empty())
    return needs(side_.cert_flag, side_.ca_flag);
  return OkStatus();
}

StatusOr<TlsMaterial> TlsFiles::Read() const {
  RETURN_IF_ERROR(CheckPaths());
  TlsMaterial material;
  ASSIGN_OR_RETURN(material.cert_pem, ReadPem(side_.cert_flag, paths_.cert_file));
  ASSIGN_OR_RETURN(material.key_pem, ReadPem(side_.key_flag, paths_.key_file));
  ASSIGN_OR_RETURN(material.ca_pem, ReadPem(side_.ca_flag, paths_.ca_file));
  return material;
}

Status TlsFiles::Load() {
  ASSIGN_OR_RETURN(TlsMaterial material, Read());
  RETURN_IF_ERROR(Check(side_, paths_, &material));
  Install(std::move(material));
  return OkStatus();
}

StatusOr<bool> TlsFiles::Reload() {
  StatusOr<TlsMaterial> material = Read();
  Status status = material.status();
  if (status.ok()) {
    if (SameFiles(*material, *current())) {
      last_failure_.clear();
      return false;
    }
    status = Check(side_, paths_, &*material);
  }
  if (status.ok()) {
    last_failure_.clear();
    Install(*std::move(material));
    return true;
  }
  const std::string failure(status.message());
  if (failure != last_failure_) {
    last_failure_ = failure;
    failure_told_ = false;
    return false;
  }
  if (std::exchange(failure_told_, true)) return false;
  return status;
}

void TlsFiles::Install(TlsMaterial material) {
  const auto now = std::make_shared<const TlsMaterial>(std::move(material));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    current_ = now;
  }
  const auto tell = [&](const char* flag, const std::string& path, int64_t expiry_unix_s) {
    if (path.empty()) return;
    if (expiry_unix_s <= std::time(nullptr))
      Log().warn("certificate has expired {} {}", Kv("flag", flag), Kv("file", path));
    if (on_expiry_) on_expiry_(std::string(flag + 2), expiry_unix_s);
  };
  tell(side_.cert_flag, paths_.cert_file, now->cert_expiry_unix_s);
  tell(side_.ca_flag, paths_.ca_file, now->ca_expiry_unix_s);
}

std::shared_ptr<const TlsMaterial> TlsFiles::current() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return current_;
}

}  // namespace flotilla
