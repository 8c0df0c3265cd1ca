// The router and its replicas, with TLS on both sides.
#include <gtest/gtest.h>
#include <spdlog/sinks/ringbuffer_sink.h>

#include <chrono>
#include <thread>

#include "common/base/log.h"
#include "common/rpc/tls_credentials.h"
#include "tests/fakes/fake_engine_service.h"
#include "tests/router/http_client.h"
#include "tests/router/router_harness.h"
#include "tests/support/certificates.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

class ReplicaTlsTest : public testing::Test {
 protected:
  ReplicaTlsTest() { Log().sinks().push_back(lines_); }
  ~ReplicaTlsTest() override {
    router_.reset();
    Log().sinks().pop_back();
  }
  // What an engine serves with; clients need a certificate of `client_ca`.
  void StartEngine(const TestPair& pair, const std::string& client_ca) {
    engine_files_ =
        std::make_unique<TlsFiles>(kTlsServer, TlsPaths{folder_.Write("engine.crt", pair.cert_pem),
                                                        folder_.Write("engine.key", pair.key_pem),
                                                        folder_.Write("client-ca.crt", client_ca)});
    CHECK_OK(engine_files_->Load());
    FakeEngineServiceOptions options;
    options.address = "127.0.0.1:0";
    options.credentials = MakeServerCredentials(engine_files_.get());
    engine_ = std::make_unique<FakeEngineService>(options);
  }
  void StartRouter(const TestPair& pair, const std::string& server_name = "") {
    RouterOptions options;
    options.http.port = options.grpc.grpc_port = 0;
    options.dispatcher.replicas = {StrCat("127.0.0.1:", engine_->port())};
    options.dispatcher.backoff_min_ms = 10;
    options.dispatcher.backoff_max_ms = 50;
    options.replica_tls.ca_file = folder_.Write("ca.crt", ca_.pem());
    options.replica_tls.cert_file = folder_.Write("tls.crt", pair.cert_pem);
    options.replica_tls.key_file = folder_.Write("tls.key", pair.key_pem);
    options.replica_tls_server_name = server_name;
    router_ = std::make_unique<RouterApp>(options);
    CHECK_OK(router_->Start());
  }
  bool Answers() {
    return router_->WaitReady(60'000) && Post(router_->http_port(), "/v1/completions",
                                              R"({"model":"smol","prompt":"Hi","max_tokens":2})")
                                                 .status == 200;
  }
  // The router has logged such a line.
  bool WaitForLine(const std::string& text) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < limit) {
      for (const std::string& line : lines_->last_formatted()) {
        if (line.find(text) != line.npos) return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  void ExpectRefused() {
    EXPECT_TRUE(WaitForLine("replica not reachable"));
    EXPECT_FALSE(router_->serving());
    EXPECT_EQ(engine_->hellos().size(), 0u);
  }

  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> lines_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
  const CertificateFolder folder_;
  const TestCa ca_{{.name = "Test CA"}};
  const TestCa other_ca_{{.name = "Other CA"}};
  std::unique_ptr<TlsFiles> engine_files_;
  std::unique_ptr<FakeEngineService> engine_;
  std::unique_ptr<RouterApp> router_;
};

TEST_F(ReplicaTlsTest, EachSideShowsItsCertificate) {
  StartEngine(ca_.Issue({.name = "engine"}), ca_.pem());
  StartRouter(ca_.Issue({.name = "router"}));
  EXPECT_TRUE(Answers());
}

TEST_F(ReplicaTlsTest, AnEngineOfAnotherCaIsRefused) {
  StartEngine(other_ca_.Issue({.name = "engine"}), ca_.pem());
  StartRouter(ca_.Issue({.name = "router"}));
  ExpectRefused();
}

TEST_F(ReplicaTlsTest, ARouterOfAnotherCaIsRefused) {
  StartEngine(ca_.Issue({.name = "engine"}), ca_.pem());
  StartRouter(other_ca_.Issue({.name = "router"}));
  ExpectRefused();
}

TEST_F(ReplicaTlsTest, AnEnginesNameIsTheAddressOrTheOneThatIsGiven) {
  StartEngine(ca_.Issue({.name = "engine", .also = "DNS:engine.flotilla"}), ca_.pem());
  const TestPair router = ca_.Issue({.name = "router"});
  StartRouter(router);
  ExpectRefused();
  router_.reset();
  StartRouter(router, "engine.flotilla");
  EXPECT_TRUE(Answers());
}

TEST_F(ReplicaTlsTest, ABrokenConnectionComesBackWithTheNewCertificates) {
  StartEngine(ca_.Issue({.name = "engine"}), ca_.pem());
  StartRouter(ca_.Issue({.name = "router"}));
  ASSERT_TRUE(Answers());
  const TestPair engine = other_ca_.Issue({.name = "engine"});
  folder_.Write("engine.crt", engine.cert_pem);
  folder_.Write("engine.key", engine.key_pem);
  folder_.Write("client-ca.crt", other_ca_.pem());
  ASSERT_TRUE(*engine_files_->Reload());
  const TestPair router = other_ca_.Issue({.name = "router"});
  folder_.Write("tls.crt", router.cert_pem);
  folder_.Write("tls.key", router.key_pem);
  folder_.Write("ca.crt", other_ca_.pem());
  ASSERT_TRUE(WaitForLine("--replica-tls-ca-file was read again"));
  EXPECT_TRUE(Answers()) << "the connection is the one before";
  engine_->Stop();
  engine_->Start();
  EXPECT_TRUE(engine_->WaitForConnections(2));
  EXPECT_TRUE(Answers());
}

TEST_F(ReplicaTlsTest, ARouterSaysWhichFlagIsWrong) {
  const auto error = [](const RouterOptions& options) {
    return std::string(RouterApp(options).Start().message());
  };
  RouterOptions options;
  options.http.port = options.grpc.grpc_port = 0;
  options.replica_tls_server_name = "engine";
  EXPECT_EQ(error(options), "--replica-tls-server-name needs --replica-tls-ca-file");
  options.replica_tls.ca_file = folder_.path() / "none";
  EXPECT_EQ(error(options), "--replica-tls-ca-file: can't read " + options.replica_tls.ca_file +
                                ": No such file or directory");
}

}  // namespace
}  // namespace flotilla
