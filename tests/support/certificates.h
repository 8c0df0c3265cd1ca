// A CA and certificates of it for a test, and a folder for their files; nothing of them is
// committed.
//
// Keys are of the curve P-256. Threads: one.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/base/status.h"

namespace flotilla {

using TestKey = std::shared_ptr<EVP_PKEY>;
using TestX509 = std::shared_ptr<X509>;

inline TestKey MakeTestKey() { return {EVP_EC_gen("P-256"), &EVP_PKEY_free}; }

template <typename Write>
std::string PemOf(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  CHECK(write(bio.get()) == 1);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(bytes));
}

inline std::string KeyPem(const TestKey& key, const char* passphrase = nullptr) {
  return PemOf([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key.get(),
                                         passphrase == nullptr ? nullptr : EVP_aes_128_cbc(),
                                         nullptr, 0, nullptr, const_cast<char*>(passphrase));
  });
}

struct CertificateSpec {
  std::string name;                                       // CN
  std::string also = "DNS:localhost,IP:127.0.0.1";        // subjectAltName
  int64_t from_unix_s = std::time(nullptr) - 3600;        // notBefore
  int64_t until_unix_s = std::time(nullptr) + 24 * 3600;  // notAfter
};

struct TestPair {
  std::string cert_pem, key_pem;
};

class TestCa {
 public:
  explicit TestCa(const CertificateSpec& spec)
      : key_(MakeTestKey()), cert_(Sign(spec, key_, "critical,CA:TRUE", nullptr)) {}

  std::string pem() const {
    return PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert_.get()); });
  }
  TestPair Issue(const CertificateSpec& spec) const { return Issue(spec, MakeTestKey()); }
  TestPair Issue(const CertificateSpec& spec, const TestKey& key) const {
    const TestX509 cert = Sign(spec, key, "critical,CA:FALSE", cert_.get());
    return {PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert.get()); }), KeyPem(key)};
  }

 private:
  static void Extend(X509* cert, int extension, const std::string& value) {
    X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, nullptr, extension, value.c_str());
    CHECK(made != nullptr && X509_add_ext(cert, made, -1) == 1);
    X509_EXTENSION_free(made);
  }
  // Issued by `issuer`, or by itself if that is null.
  TestX509 Sign(const CertificateSpec& spec, const TestKey& key, const char* constraints,
                const X509* issuer) const {
    static int64_t serial = 0;
    TestX509 cert(X509_new(), &X509_free);
    X509_set_version(cert.get(), X509_VERSION_3);
    ASN1_INTEGER_set_int64(X509_get_serialNumber(cert.get()), ++serial);
    ASN1_TIME_set(X509_getm_notBefore(cert.get()), spec.from_unix_s);
    ASN1_TIME_set(X509_getm_notAfter(cert.get()), spec.until_unix_s);
    X509_set_pubkey(cert.get(), key.get());
    X509_NAME* const name = X509_get_subject_name(cert.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(spec.name.c_str()), -1, -1,
                               0);
    X509_set_issuer_name(cert.get(), issuer == nullptr ? name : X509_get_subject_name(issuer));
    Extend(cert.get(), NID_basic_constraints, constraints);
    Extend(cert.get(), NID_subject_alt_name, spec.also);
    CHECK(X509_sign(cert.get(), key_.get(), EVP_sha256()) > 0);
    return cert;
  }

  const TestKey key_;
  const TestX509 cert_;
};

// Goes with the object.
class CertificateFolder {
 public:
  CertificateFolder() {
    char name[] = "/tmp/flotilla-tls-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~CertificateFolder() { std::filesystem::remove_all(path_); }
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  // At once: nobody reads half a file.
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / "new") << text;
    std::filesystem::rename(path_ / "new", path_ / name);
    return path_ / name;
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace flotilla
