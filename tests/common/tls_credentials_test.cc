// A gRPC server and channels whose certificates change.
#include "common/rpc/tls_credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/rpc/health_service.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

class TlsCredentialsTest : public testing::Test {
 protected:
  ~TlsCredentialsTest() override {
    health_.Shutdown();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  void WritePair(const TestPair& pair) {
    paths_.cert_file = folder_.Write("tls.crt", pair.cert_pem);
    paths_.key_file = folder_.Write("tls.key", pair.key_pem);
  }
  void Serve() {
    files_ = std::make_unique<TlsFiles>(kTlsServer, paths_);
    CHECK_OK(files_->Load());
    credentials_ = MakeServerCredentials(files_.get());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials_, &port_);
    builder.AddListeningPort("127.0.0.1:0", credentials_, &other_port_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr && port_ > 0 && other_port_ > 0);
    health_.SetServing(true);
  }
  // A new connection.
  static std::shared_ptr<grpc::Channel> Connect(int port, const std::string& ca,
                                                const TestPair& pair = {}) {
    auto material = std::make_shared<TlsMaterial>();
    material->ca_pem = ca;
    material->cert_pem = pair.cert_pem;
    material->key_pem = pair.key_pem;
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(StrCat("127.0.0.1:", port), MakeChannelCredentials(material),
                                     args);
  }
  // Asks for the health; the server's certificate, or what was wrong.
  static std::string Ask(const std::shared_ptr<grpc::Channel>& channel) {
    const auto stub = grpc::health::v1::Health::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, {}, &response);
    if (!status.ok()) return StrCat(status.error_code(), " ", status.error_message());
    const auto values = context.auth_context()->FindPropertyValues("x509_pem_cert");
    return values.empty() ? "plain" : std::string(values[0].data(), values[0].size());
  }
  std::string Ask(const std::string& ca, const TestPair& pair = {}) {
    return Ask(Connect(port_, ca, pair));
  }

  const CertificateFolder folder_;
  const TestCa ca_{{.name = "Test CA"}};
  const TestCa other_ca_{{.name = "Other CA"}};
  TlsPaths paths_;
  HealthService health_{{}};
  std::unique_ptr<TlsFiles> files_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0, other_port_ = 0;
};

const auto kRefused = testing::StartsWith("14 ");  // UNAVAILABLE

TEST_F(TlsCredentialsTest, AServerIsWhoItsCertificateSays) {
  const TestPair pair = ca_.Issue({.name = "server"});
  WritePair(pair);
  Serve();
  EXPECT_EQ(Ask(ca_.pem()), pair.cert_pem);
  EXPECT_THAT(Ask(other_ca_.pem()), kRefused);
  EXPECT_THAT(
      Ask(grpc::CreateChannel(StrCat("127.0.0.1:", port_), MakeChannelCredentials(nullptr))),
      kRefused)
      << "plain text";
}

TEST_F(TlsCredentialsTest, AServersCertificateMustHaveItsAddressAndNotBeOver) {
  WritePair(ca_.Issue({.name = "server", .also = "DNS:elsewhere"}));
  Serve();
  EXPECT_THAT(Ask(ca_.pem()), kRefused);
  WritePair(ca_.Issue({.name = "server", .until_unix_s = std::time(nullptr) - 60}));
  ASSERT_TRUE(*files_->Reload());
  EXPECT_THAT(Ask(ca_.pem()), kRefused);
}

TEST_F(TlsCredentialsTest, WithACaClientsNeedACertificateOfIt) {
  const TestPair pair = ca_.Issue({.name = "server"});
  WritePair(pair);
  paths_.ca_file = folder_.Write("ca.crt", ca_.pem());
  Serve();
  EXPECT_EQ(Ask(ca_.pem(), ca_.Issue({.name = "client"})), pair.cert_pem);
  EXPECT_THAT(Ask(ca_.pem()), kRefused) << "none";
  EXPECT_THAT(Ask(ca_.pem(), other_ca_.Issue({.name = "client"})), kRefused) << "of another CA";
  EXPECT_THAT(
      Ask(ca_.pem(), ca_.Issue({.name = "client", .until_unix_s = std::time(nullptr) - 60})),
      kRefused)
      << "expired";
}

TEST_F(TlsCredentialsTest, NewConnectionsGetTheNewCertificateAndOldOnesGoOn) {
  const TestPair pair = ca_.Issue({.name = "server"});
  WritePair(pair);
  paths_.ca_file = folder_.Write("ca.crt", ca_.pem());
  Serve();
  const TestPair client = ca_.Issue({.name = "client"});
  const auto before = Connect(port_, ca_.pem(), client);
  EXPECT_EQ(Ask(before), pair.cert_pem);
  EXPECT_EQ(Ask(Connect(other_port_, ca_.pem(), client)), pair.cert_pem);

  const TestPair next = other_ca_.Issue({.name = "next"});
  WritePair(next);
  folder_.Write("ca.crt", other_ca_.pem());
  ASSERT_TRUE(*files_->Reload());
  const TestPair next_client = other_ca_.Issue({.name = "client"});
  EXPECT_EQ(Ask(other_ca_.pem(), next_client), next.cert_pem);
  EXPECT_EQ(Ask(Connect(other_port_, other_ca_.pem(), next_client)), next.cert_pem)
      << "each port has it";
  EXPECT_THAT(Ask(other_ca_.pem(), client), kRefused) << "of the CA before";
  EXPECT_EQ(Ask(before), pair.cert_pem) << "the connection is the one before";
}

}  // namespace
}  // namespace flotilla
