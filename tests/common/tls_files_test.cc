#include "common/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>

#include <map>

#include "tests/support/certificates.h"

namespace flotilla {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class TlsFilesTest : public testing::Test {
 protected:
  void WritePair(const TestPair& pair) {
    paths_.cert_file = folder_.Write("tls.crt", pair.cert_pem);
    paths_.key_file = folder_.Write("tls.key", pair.key_pem);
  }
  void WriteCa(const std::string& pem) { paths_.ca_file = folder_.Write("ca.crt", pem); }
  TlsFiles Files(const TlsSide& side = kTlsServer) {
    return TlsFiles(side, paths_,
                    [this](const std::string& file, int64_t unix_s) { expiries_[file] = unix_s; });
  }
  // What Load says of the files as they are.
  std::string Error(const TlsSide& side = kTlsServer) {
    return std::string(Files(side).Load().message());
  }

  const CertificateFolder folder_;
  const TestCa ca_{{.name = "Test CA"}};
  TlsPaths paths_;
  std::map<std::string, int64_t> expiries_;
};

TEST_F(TlsFilesTest, SaysWhenCertificatesEnd) {
  const int64_t now = std::time(nullptr);
  const TestCa between({.name = "Between", .until_unix_s = now + 1000});
  const TestCa old({.name = "Old CA", .until_unix_s = now + 10});
  const TestCa young({.name = "New CA", .until_unix_s = now + 9000});
  TestPair pair = ca_.Issue({.name = "server", .until_unix_s = now + 5000});
  pair.cert_pem += between.pem();
  WritePair(pair);
  WriteCa(old.pem() + young.pem());
  TlsFiles files = Files();
  ASSERT_TRUE(files.Load().ok());
  EXPECT_EQ(expiries_["tls-cert-file"], now + 1000) << "a chain ends with its first";
  EXPECT_EQ(expiries_["tls-client-ca-file"], now + 9000) << "trust ends with the last";
  EXPECT_EQ(files.current()->cert_pem, pair.cert_pem);
  EXPECT_EQ(files.current()->key_pem, pair.key_pem);
}

TEST_F(TlsFilesTest, AnErrorNamesTheFlagThatIsMissing) {
  paths_.cert_file = "a";
  EXPECT_EQ(Error(), "--tls-cert-file needs --tls-key-file");
  EXPECT_EQ(Error(kTlsToReplicas), "--replica-tls-cert-file needs --replica-tls-key-file");
  paths_ = {"", "a", ""};
  EXPECT_EQ(Error(), "--tls-key-file needs --tls-cert-file");
  paths_ = {"", "", "a"};
  EXPECT_EQ(Error(), "--tls-client-ca-file needs --tls-cert-file");
  paths_ = {"a", "b", ""};
  EXPECT_EQ(Error(kTlsToReplicas), "--replica-tls-cert-file needs --replica-tls-ca-file");
}

TEST_F(TlsFilesTest, AClientNeedsNoFilesAndVerifiesItsServer) {
  TlsFiles without(kTlsToServer, {});
  ASSERT_TRUE(without.Load().ok());
  EXPECT_EQ(SSL_CTX_get_verify_mode(without.current()->context.get()), SSL_VERIFY_PEER);
  WriteCa(ca_.pem());
  TlsFiles with = Files(kTlsToServer);
  ASSERT_TRUE(with.Load().ok());
  SSL_CTX* const context = with.current()->context.get();
  EXPECT_EQ(SSL_CTX_get_verify_mode(context), SSL_VERIFY_PEER);
  EXPECT_EQ(sk_X509_OBJECT_num(X509_STORE_get0_objects(SSL_CTX_get_cert_store(context))), 1);
}

TEST_F(TlsFilesTest, AnErrorNamesTheFlagAndTheFileThatIsWrong) {
  const TestPair pair = ca_.Issue({.name = "server"});
  WritePair(pair);
  WriteCa(ca_.pem());
  EXPECT_EQ(Error(), "");
  folder_.Write("tls.crt", "nothing");
  EXPECT_EQ(Error(), "--tls-cert-file: " + paths_.cert_file + " has no certificate in PEM");
  folder_.Write("tls.crt", pair.cert_pem + "-----BEGIN CERTIFICATE-----\n@@@@\n");
  EXPECT_THAT(Error(), StartsWith("--tls-cert-file: " + paths_.cert_file + " is no valid PEM: "));
  WritePair({pair.cert_pem, pair.cert_pem});
  EXPECT_EQ(Error(), "--tls-key-file: " + paths_.key_file + " has no private key in PEM");
  WritePair({pair.cert_pem, KeyPem(MakeTestKey(), "secret")});
  EXPECT_THAT(Error(), EndsWith("needs a passphrase; give a key without one"));
  WritePair({pair.cert_pem, KeyPem(MakeTestKey())});
  EXPECT_EQ(Error(), "--tls-key-file: " + paths_.key_file +
                         " is not the key of the certificate in " + paths_.cert_file);
  WritePair(pair);
  WriteCa(pair.key_pem);
  EXPECT_EQ(Error(), "--tls-client-ca-file: " + paths_.ca_file + " has no certificate in PEM");
  std::filesystem::remove(paths_.ca_file);
  EXPECT_EQ(Error(),
            "--tls-client-ca-file: can't read " + paths_.ca_file + ": No such file or directory");
  folder_.Write("ca.crt", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Error(), EndsWith("ca.crt has more than 1048576 bytes"));
}

TEST_F(TlsFilesTest, AKeyThatIsTooWeakIsRefused) {
  WritePair(ca_.Issue({.name = "server"}, TestKey(EVP_RSA_gen(1024), &EVP_PKEY_free)));
  EXPECT_THAT(Error(), HasSubstr("tls.crt is refused: ee key too small"));
}

TEST_F(TlsFilesTest, ReadsAgainWhatHasChanged) {
  WritePair(ca_.Issue({.name = "server"}));
  TlsFiles files = Files();
  ASSERT_TRUE(files.Load().ok());
  const auto before = files.current();
  EXPECT_FALSE(*files.Reload());
  EXPECT_EQ(files.current(), before);
  const TestPair next = ca_.Issue({.name = "next"});
  WritePair(next);
  EXPECT_TRUE(*files.Reload());
  EXPECT_EQ(files.current()->cert_pem, next.cert_pem);
  EXPECT_NE(before->cert_pem, next.cert_pem) << "who has the one before keeps it";
}

// As Kubernetes does it: each file is a link into ..data, which is a link to a folder.
TEST_F(TlsFilesTest, ReadsAgainWhatALinkLeadsTo) {
  const auto put = [&](const std::string& folder, const TestPair& pair) {
    std::filesystem::create_directory(folder_.path() / folder);
    folder_.Write(folder + "/tls.crt", pair.cert_pem);
    folder_.Write(folder + "/tls.key", pair.key_pem);
    std::filesystem::create_directory_symlink(folder, folder_.path() / "..new");
    std::filesystem::rename(folder_.path() / "..new", folder_.path() / "..data");
  };
  put("..1", ca_.Issue({.name = "server"}));
  paths_.cert_file = folder_.path() / "..data/tls.crt";
  paths_.key_file = folder_.path() / "..data/tls.key";
  TlsFiles files = Files();
  ASSERT_TRUE(files.Load().ok());
  const TestPair next = ca_.Issue({.name = "next"});
  put("..2", next);
  EXPECT_TRUE(*files.Reload());
  EXPECT_EQ(files.current()->key_pem, next.key_pem);
}

TEST_F(TlsFilesTest, ABadPairIsToldOnceAndTheOneBeforeStays) {
  const TestPair first = ca_.Issue({.name = "server"});
  WritePair(first);
  TlsFiles files = Files();
  ASSERT_TRUE(files.Load().ok());
  folder_.Write("tls.key", KeyPem(MakeTestKey()));
  EXPECT_FALSE(*files.Reload()) << "the other file may be about to follow";
  const StatusOr<bool> told = files.Reload();
  EXPECT_THAT(std::string(told.status().message()), HasSubstr("is not the key of the certificate"));
  EXPECT_FALSE(*files.Reload()) << "told once";
  EXPECT_EQ(files.current()->key_pem, first.key_pem);

  std::filesystem::remove(paths_.key_file);
  EXPECT_FALSE(*files.Reload());
  EXPECT_FALSE(files.Reload().ok()) << "that it is away is another error";
  WritePair(first);
  EXPECT_FALSE(*files.Reload()) << "what is there is what is used";
  folder_.Write("tls.key", KeyPem(MakeTestKey()));
  EXPECT_FALSE(*files.Reload());
  EXPECT_FALSE(files.Reload().ok()) << "it is wrong again";
}

TEST_F(TlsFilesTest, AnExpiredCertificateIsTaken) {
  const int64_t now = std::time(nullptr);
  WritePair(ca_.Issue({.name = "server", .until_unix_s = now - 1}));
  EXPECT_EQ(Error(), "") << "clients refuse it; the alert says so";
  EXPECT_EQ(expiries_["tls-cert-file"], now - 1);
}

}  // namespace
}  // namespace flotilla
