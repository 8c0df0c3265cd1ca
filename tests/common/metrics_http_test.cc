#include "common/base/metrics_http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/check.h"
#include "tests/support/read_all.h"

namespace flotilla {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

UniqueFd Connect(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

// All until the server closes.
std::string Ask(uint16_t port, const std::string& request) {
  const UniqueFd fd = Connect(port);
  EXPECT_EQ(write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  return ReadAll(fd.get());
}

MetricsHttpServer::Options SomePages() {
  const auto page = [](const std::string& target) -> std::optional<MetricsPage> {
    if (target == "/big") return MetricsPage{std::string(3 << 20, 'b')};
    if (target != "/metrics?names=x")
      return HealthPage(
          target, [] { return true; }, false);
    return MetricsPage{"up 1\n"};
  };
  return {"127.0.0.1", 0, page, "here is /metrics\n"};
}

TEST(MetricsHttpTest, AnswersWithThePageOfTheTarget) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  const std::string answer =
      Ask(server->port(), "GET /metrics?names=x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 5\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nup 1\n"));
}

TEST(MetricsHttpTest, APageMayBeLargerThanASocketTakesAtOnce) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  EXPECT_GT(Ask(server->port(), "GET /big HTTP/1.1\r\n\r\n").size(), size_t{3} << 20);
}

TEST(MetricsHttpTest, AnswersProbes) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  EXPECT_THAT(Ask(server->port(), "GET /health/live HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Ask(server->port(), "GET /health/ready HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"), EndsWith("not ready\n")));
  const auto live = [] { return true; };
  EXPECT_TRUE(HealthPage("/health/ready", live, true)->ok);
  EXPECT_FALSE(HealthPage("/health", live, true).has_value());
  const auto hangs = [] { return false; };
  EXPECT_FALSE(HealthPage("/health/live", hangs, true)->ok);
  EXPECT_FALSE(HealthPage("/health/ready", hangs, true)->ok);
}

TEST(MetricsHttpTest, RefusesWhatItHasNot) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  EXPECT_THAT(Ask(server->port(), "GET / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("\r\n\r\nhere is /metrics\n")));
  EXPECT_THAT(Ask(server->port(), "POST /metrics?names=x HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  const std::string endless(9000, 'x');
  EXPECT_THAT(Ask(server->port(), "GET /" + endless), testing::Not(StartsWith("HTTP/1.1 200")));
  EXPECT_THAT(Ask(server->port(), "GET /metrics?names=x HTTP/1.1\r\n\r\n"), EndsWith("up 1\n"))
      << "a bad request must not end it";
}

// Bytes after the header of such an answer are an error to HTTP clients.
TEST(MetricsHttpTest, AHeadHasNoBody) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  EXPECT_THAT(Ask(server->port(), "HEAD /metrics?names=x HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Length: 5\r\n"),
                    EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask(server->port(), "HEAD / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("\r\n\r\n")));
}

TEST(MetricsHttpTest, AClientThatSaysNothingIsDropped) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  const UniqueFd silent = Connect(server->port());
  char byte;
  EXPECT_EQ(recv(silent.get(), &byte, 1, 0), 0);
}

TEST(MetricsHttpTest, ClientsThatSayNothingHoldNobodyUp) {
  const auto server = *MetricsHttpServer::Start(SomePages());
  std::vector<UniqueFd> silent;
  const int64_t begin_ns = RealClock::Now();
  for (size_t i = 0; i < kMetricsClients + 5; ++i) {
    silent.push_back(Connect(server->port()));
    ASSERT_EQ(send(silent.back().get(), "GET /", 5, 0), 5);
    EXPECT_THAT(Ask(server->port(), "GET /metrics?names=x HTTP/1.1\r\n\r\n"), EndsWith("up 1\n"));
  }
  // Of so many one after the other each would have had its time.
  EXPECT_LT(RealClock::Now() - begin_ns,
            static_cast<int64_t>(silent.size()) * kMetricsClientTimeoutNs / 4);
}

TEST(MetricsHttpTest, ASocketOfTwoOutlivesOne) {
  auto first = *MetricsHttpServer::Start(SomePages());
  const uint16_t port = first->port();
  const auto second = *MetricsHttpServer::Start(
      SomePages(), UniqueFd(fcntl(first->listener(), F_DUPFD_CLOEXEC, 0)));
  EXPECT_EQ(second->port(), port);
  first.reset();
  EXPECT_THAT(Ask(port, "GET /metrics?names=x HTTP/1.1\r\n\r\n"), EndsWith("up 1\n"));
}

TEST(MetricsHttpTest, APortThatIsTakenIsAnError) {
  const auto first = *MetricsHttpServer::Start(SomePages());
  MetricsHttpServer::Options same = SomePages();
  same.port = first->port();
  const auto second = MetricsHttpServer::Start(same);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr(StrCat(first->port())));
}

}  // namespace
}  // namespace flotilla
