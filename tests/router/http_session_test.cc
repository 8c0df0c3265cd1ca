// A session over a socket pair, whose events are handled by poll(): nothing here waits, but for who
// reads slowly.
#include "router/http/http_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/unique_fd.h"
#include "router/http/http_server.h"

namespace flotilla {
namespace {

class Service final : public HttpService {
 public:
  std::optional<ApiError> CheckHead(const HttpHead&) override { return std::nullopt; }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    lease = std::move(request.body_lease);
    const std::string& path = request.head.path;
    if (path == "/wait") return;
    exchange->Reply(200, "text/plain", path == "/large" ? std::string(kLarge, 'a') : "answer");
  }
  void OnAnswered(const std::string&, int, double) override {}
  void OnRefused(const char* reason) override { refused = reason; }
  void OnBodyBytes(int64_t delta) override { body_bytes += delta; }
  void OnUnsent(int64_t) override {}

  static constexpr size_t kLarge = 8 << 20;
  BodyLease lease;  // of the last request
  std::string refused;
  int64_t body_bytes = 0;
};

class HttpSessionTest : public testing::Test {
 protected:
  explicit HttpSessionTest(const HttpOptions& options = {}) : server_(options, &service_) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    client_ = UniqueFd(ends[0]);
    boost::asio::ip::tcp::socket socket(io_, boost::asio::ip::tcp::v4(), ends[1]);
    const auto session = std::make_shared<HttpSession>(&server_, std::move(socket));
    session_ = session;
    session->Start();
  }
  ~HttpSessionTest() override {
    if (const auto session = session_.lock()) session->Close();  // the server does not know it
  }
  void Send(std::string_view bytes) {
    EXPECT_EQ(::send(client_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    Poll();
  }
  void Poll() {
    io_.restart();
    io_.poll();
  }

  Service service_;
  boost::asio::io_context io_;
  HttpServer server_;
  UniqueFd client_;
  std::weak_ptr<HttpSession> session_;
};

// Found by tests/fuzz/http_fuzz.cc: it was kept for the three seconds that a client has to send
// what the server does not read any more.
TEST_F(HttpSessionTest, EndsWithItsClientAfterAnAnswerThatCloses) {
  Send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_FALSE(session_.expired());
  char answer[1000];
  EXPECT_GT(::recv(client_.get(), answer, sizeof(answer), 0), 0);
  ASSERT_EQ(::shutdown(client_.get(), SHUT_WR), 0);
  Poll();
  EXPECT_TRUE(session_.expired());
}

TEST_F(HttpSessionTest, EndsWithAClientThatDoesNotReadTheAnswer) {
  Send("GET / HTTP/1.0\r\n\r\n");
  client_ = UniqueFd();  // with bytes unread: the session reads an error
  Poll();
  EXPECT_TRUE(session_.expired());
}

TEST_F(HttpSessionTest, ReadsWhatAClientStillSendsAfterTheAnswer) {
  Send("GET / HTTP/1.0\r\n\r\n");
  Send("more");
  EXPECT_FALSE(session_.expired());
  ASSERT_EQ(::shutdown(client_.get(), SHUT_WR), 0);
  Poll();
  EXPECT_TRUE(session_.expired());
}

// More than the session reads ahead while it answers, so that it must leave bytes in the socket.
TEST_F(HttpSessionTest, AnswersAFloodOfPipelinedRequestsOneByOne) {
  constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  constexpr size_t kRequests = 20'000;
  std::string flood, answers;
  for (size_t i = 0; i < kRequests; ++i) flood += kRequest;
  std::string_view left = flood;
  size_t count = 0;
  for (int idle = 0; count < kRequests && idle < 1000; ++idle) {
    const ssize_t sent = ::send(client_.get(), left.data(), left.size(), 0);
    if (sent > 0) left.remove_prefix(static_cast<size_t>(sent));
    Poll();
    char bytes[1 << 16];
    for (ssize_t n; (n = ::recv(client_.get(), bytes, sizeof(bytes), 0)) > 0; idle = 0) {
      answers.append(bytes, static_cast<size_t>(n));
      Poll();
    }
    for (size_t at; (at = answers.find("answer")) != std::string::npos; ++count)
      answers.erase(0, at + 6);
  }
  EXPECT_EQ(count, kRequests);
}

class SlowReaderTest : public HttpSessionTest {
 protected:
  static HttpOptions Options() {
    HttpOptions options;
    options.write_timeout_ms = 300;
    options.least_read_bytes_per_s = Service::kLarge * 10;
    return options;
  }
  SlowReaderTest() : HttpSessionTest(Options()) {}
};

// Each piece that it takes is in time for the next; all of them would take seconds.
TEST_F(SlowReaderTest, IsDroppedHoweverOftenItTakesALittle) {
  Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  char bytes[4096];
  size_t taken = 0;
  while (!session_.expired() && taken < Service::kLarge) {
    if (const ssize_t n = ::recv(client_.get(), bytes, sizeof(bytes), 0); n > 0)
      taken += static_cast<size_t>(n);
    io_.restart();
    io_.run_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(taken, Service::kLarge);
  EXPECT_EQ(service_.refused, "slow_client");
}

TEST_F(SlowReaderTest, IsNoneThatTakesItAtOnce) {
  for (int i = 0; i < 2; ++i) {
    Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    size_t taken = 0;
    for (char bytes[1 << 16]; taken < Service::kLarge && !session_.expired(); Poll()) {
      if (const ssize_t n = ::recv(client_.get(), bytes, sizeof(bytes), 0); n > 0)
        taken += static_cast<size_t>(n);
    }
  }
  EXPECT_FALSE(session_.expired());
  EXPECT_EQ(service_.refused, "");
}

// Or clients that leave could have bodies parsed without a bound on their memory.
TEST_F(HttpSessionTest, ABodyKeepsItsRoomUntilItsLastUserIsDone) {
  Send("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345");
  ASSERT_NE(service_.lease, nullptr);
  EXPECT_FALSE(service_.lease->abandoned);
  client_ = UniqueFd();
  Poll();
  EXPECT_TRUE(session_.expired());
  EXPECT_TRUE(service_.lease->abandoned);
  EXPECT_EQ(service_.body_bytes, 5);
  service_.lease.reset();
  EXPECT_EQ(service_.body_bytes, 0);
}

}  // namespace
}  // namespace flotilla
