// The router's two ports for clients, with TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/tls_credentials.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/https_client.h"
#include "tests/router/router_harness.h"
#include "tests/support/certificates.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

constexpr std::string_view kGet = "GET /health/live HTTP/1.1\r\nHost: test\r\n\r\n";
constexpr std::string_view kGetAndClose =
    "GET /health/live HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

class HttpsTest : public testing::Test {
 protected:
  HttpsTest() {
    pair_ = ca_.Issue({.name = "router"});
    WritePair(pair_);
    client_.ca_pem = ca_.pem();
  }
  void WritePair(const TestPair& pair) {
    options_.tls.cert_file = folder_.Write("tls.crt", pair.cert_pem);
    options_.tls.key_file = folder_.Write("tls.key", pair.key_pem);
  }
  void DemandClientCertificates() { options_.tls.ca_file = folder_.Write("ca.crt", ca_.pem()); }
  uint16_t Start() {
    harness_ = std::make_unique<RouterHarness>(options_);
    return harness_->port();
  }
  HttpsClient ClientWith(const TestPair& pair) const {
    HttpsClient client = client_;
    client.cert_pem = pair.cert_pem;
    client.key_pem = pair.key_pem;
    return client;
  }
  // The status of an answer over a new connection; 0 if none comes.
  int Ask(const HttpsClient& client) {
    HttpsConnection connection(harness_->port(), client);
    if (!connection.error().empty()) return 0;
    connection.Send(kGetAndClose);
    return connection.Read().status;
  }
  double Refused(const std::string& reason) {
    return harness_->Metric(StrCat("flotilla_router_rejections_total{reason=\"", reason, "\"}"));
  }

  const CertificateFolder folder_;
  const TestCa ca_{{.name = "Test CA"}};
  const TestCa other_ca_{{.name = "Other CA"}};
  TestPair pair_;
  HttpsClient client_;
  HarnessOptions options_;
  std::unique_ptr<RouterHarness> harness_;
};

TEST_F(HttpsTest, AnswersRequestsOneAfterTheOther) {
  HttpsConnection connection(Start(), client_);
  ASSERT_EQ(connection.error(), "");
  for (int i = 0; i < 3; ++i) {
    connection.Send(kGet);
    EXPECT_EQ(connection.Read().status, 200);
  }
  connection.Send(StrCat(kGet, kGet, kGetAndClose));  // pipelined
  for (int i = 0; i < 3; ++i) EXPECT_EQ(connection.Read().status, 200);
  EXPECT_TRUE(connection.ReadsEof());
  EXPECT_TRUE(connection.ended_in_order()) << "else a client takes the answer for cut off";
}

TEST_F(HttpsTest, StreamsAndBodiesOfManyRecordsAreWhole) {
  HttpsConnection connection(Start(), client_);
  const std::string more = StrCat(R"("user":")", std::string(200'000, 'x'), R"(",)");
  connection.Send(PostText("/v1/completions",
                           StrCat("{", more, R"("model":"smol","prompt":"Hi","max_tokens":300,)",
                                  R"("stream":true,"ignore_eos":true})")));
  const HttpAnswer answer = connection.Read();
  EXPECT_EQ(answer.status, 200);
  const std::vector<std::string> events = Events(answer.body);
  EXPECT_GE(events.size(), 250u);  // some tokens have no text of their own
  EXPECT_EQ(events.back(), "[DONE]");
  connection.Send(kGet);
  EXPECT_EQ(connection.Read().status, 200);
}

TEST_F(HttpsTest, AClientThatStillSendsSeesWhyItIsRefused) {
  options_.http.max_body_bytes = 1000;
  HttpsConnection connection(Start(), client_);
  connection.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
      "Content-Length: 3000000\r\n\r\n");
  const std::string piece(100'000, 'x');
  for (int i = 0; i < 10; ++i) connection.Send(piece);
  EXPECT_EQ(connection.Read().status, 413);
}

TEST_F(HttpsTest, AClientThatGoesAwayEndsItsRequest) {
  Start();
  harness_->engine().Hold();
  {
    HttpsConnection connection(harness_->port(), client_);
    connection.Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hi"})"));
    ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
  }
  EXPECT_TRUE(harness_->engine().WaitForAborts(1));
}

TEST_F(HttpsTest, OnlyTheRightCaKnowsTheServer) {
  Start();
  EXPECT_EQ(Ask(client_), 200);
  client_.ca_pem = other_ca_.pem();
  const HttpsConnection connection(harness_->port(), client_);
  EXPECT_THAT(connection.error(), HasSubstr("certificate verify failed"));
  EXPECT_TRUE(
      harness_->WaitForMetric("flotilla_router_rejections_total{reason=\"tls_handshake\"}", 1));
}

TEST_F(HttpsTest, SpeaksHttp11AndTls12OrLaterOnly) {
  const uint16_t port = Start();
  client_.protocol = "http/1.1";
  EXPECT_EQ(HttpsConnection(port, client_).protocol(), "http/1.1");
  client_.protocol = "h2";
  EXPECT_THAT(HttpsConnection(port, client_).error(), HasSubstr("no application protocol"));
  client_.protocol = "";
  client_.max_version = TLS1_2_VERSION;
  EXPECT_EQ(Ask(client_), 200);
  client_.max_version = TLS1_1_VERSION;
  EXPECT_THAT(HttpsConnection(port, client_).error(), HasSubstr("alert protocol version"));
}

TEST_F(HttpsTest, ClientsNeedACertificateOfTheCa) {
  DemandClientCertificates();
  Start();
  EXPECT_EQ(Ask(ClientWith(ca_.Issue({.name = "client"}))), 200);
  EXPECT_EQ(Ask(client_), 0) << "none";
  EXPECT_EQ(Ask(ClientWith(other_ca_.Issue({.name = "client"}))), 0) << "of another CA";
  const int64_t now = std::time(nullptr);
  EXPECT_EQ(Ask(ClientWith(ca_.Issue({.name = "client", .until_unix_s = now - 60}))), 0)
      << "expired";
  EXPECT_TRUE(
      harness_->WaitForMetric("flotilla_router_rejections_total{reason=\"tls_handshake\"}", 3));
}

TEST_F(HttpsTest, SessionsAreResumedUnlessEachConnectionMustShowACertificate) {
  const auto second_is_resumed = [&](const HttpsClient& client) {
    HttpsConnection first(harness_->port(), client);
    first.Send(kGet);
    EXPECT_EQ(first.Read().status, 200);
    return HttpsConnection(harness_->port(), client, first.session().get()).resumed();
  };
  Start();
  EXPECT_TRUE(second_is_resumed(client_));
  DemandClientCertificates();
  Start();
  EXPECT_FALSE(second_is_resumed(ClientWith(ca_.Issue({.name = "client"}))));
}

TEST_F(HttpsTest, PlainHttpIsToldSo) {
  HttpConnection connection(Start());
  connection.Send(kGet);
  const HttpAnswer answer = connection.Read();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("This port speaks HTTPS, not HTTP."));
  EXPECT_TRUE(connection.ReadsEof());
  EXPECT_EQ(Refused("plain_http"), 1);
  HttpConnection noise(harness_->port());
  noise.Send("\x01\x02\x03\x04\x05\x06 neither of both");
  EXPECT_TRUE(
      harness_->WaitForMetric("flotilla_router_rejections_total{reason=\"tls_handshake\"}", 1));
}

TEST_F(HttpsTest, AHandshakeThatNeverEndsIsAConnectionForALimitedTime) {
  options_.http.max_connections = 1;
  options_.http.least_wait_ms = 60'000;
  options_.http.header_timeout_ms = 2000;
  HttpConnection silent(Start());
  HttpsConnection second(harness_->port(), client_);
  EXPECT_NE(second.error(), "") << "the silent one is the only one that may be";
  EXPECT_EQ(Refused("max_connections"), 1);
  EXPECT_TRUE(silent.ReadsEof());
  EXPECT_EQ(Refused("timeout"), 1);
}

TEST_F(HttpsTest, NewConnectionsGetTheNewCertificateAndOldOnesGoOn) {
  HttpsConnection before(Start(), client_);
  EXPECT_EQ(before.server_certificate(), pair_.cert_pem);
  const int64_t until = std::time(nullptr) + 5000;
  const TestPair next = ca_.Issue({.name = "next", .until_unix_s = until});
  WritePair(next);
  ASSERT_TRUE(harness_->WaitForMetric(
      "flotilla_router_certificate_expiry_timestamp_seconds{file=\"tls-cert-file\"}",
      static_cast<double>(until)));
  EXPECT_EQ(HttpsConnection(harness_->port(), client_).server_certificate(), next.cert_pem);
  before.Send(kGet);
  EXPECT_EQ(before.Read().status, 200);
}

TEST_F(HttpsTest, GrpcHasTheSameCertificates) {
  DemandClientCertificates();
  Start();
  const auto models = [&](const TestPair& pair) {
    auto material = std::make_shared<TlsMaterial>();
    material->ca_pem = ca_.pem();
    material->cert_pem = pair.cert_pem;
    material->key_pem = pair.key_pem;
    const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
        StrCat("127.0.0.1:", harness_->app().grpc_port()), MakeChannelCredentials(material)));
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    const grpc::Status status = stub->ListModels(&context, {}, &response);
    return status.ok() ? response.models_size() : -1;
  };
  EXPECT_EQ(models(ca_.Issue({.name = "client"})), 1);
  EXPECT_EQ(models({}), -1);
}

}  // namespace
}  // namespace flotilla
