// Connections of the router's gRPC port that do what no gRPC client does, in bytes of HTTP/2.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "common/base/unique_fd.h"
#include "router/grpc/grpc_service.h"
#include "tests/router/router_harness.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

enum FrameType : uint8_t { kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7 };
constexpr uint8_t kEndHeaders = 4, kAck = 1;
constexpr char kFlooded[] = "flotilla_router_rejections_total{reason=\"reset_flood\"}";
constexpr char kFull[] = "flotilla_router_rejections_total{reason=\"max_connections\"}";

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const auto byte = [](size_t value, int shift) { return static_cast<char>(value >> shift); };
  std::string out;
  for (const int shift : {16, 8, 0}) out.push_back(byte(payload.size(), shift));
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) out.push_back(byte(stream, shift));
  return out + payload;
}

// HPACK: POST, http, and fields that no table has.
std::string HeadersOfACall() {
  const auto text = [](const std::string& value) {
    return std::string(1, static_cast<char>(value.size())) + value;
  };
  return "\x83\x86\x04" + text("/flotilla.v1.Inference/Generate") + "\x01" + text("x") +
         "\x0f\x10" + text("application/grpc") + std::string(1, '\0') + text("te") +
         text("trailers");
}

class RawConnection {
 public:
  // `receive_bytes`: of its socket; 0: the system's default.
  explicit RawConnection(uint16_t port, int receive_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_bytes > 0)
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
  }

  // False: it is closed.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t now = send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<size_t>(now);
    }
    return true;
  }
  bool Open(uint32_t count) {
    std::string bytes;
    for (uint32_t i = 0; i < count; ++i)
      bytes += Frame(kHeaders, kEndHeaders, next_ + 2 * i, HeadersOfACall());
    next_ += 2 * count;
    return Send(bytes);
  }
  bool ResetLast(uint32_t count) {
    std::string bytes;
    for (uint32_t i = 0; i < count; ++i)
      bytes += Frame(kReset, 0, next_ - 2 * (i + 1), std::string("\0\0\0\x08", 4));
    return Send(bytes);
  }
  // Sends them over and over, for as long as the other side takes them; true if it is full then,
  // false if it is closed or takes more than `most` bytes.
  bool SendUntilFull(const std::string& bytes, size_t most) {
    for (size_t sent = 0; sent < most;) {
      pollfd ready = {fd_.get(), POLLOUT, 0};
      if (poll(&ready, 1, 2000) == 0) return true;
      const ssize_t now = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now < 0 && errno != EAGAIN) return false;
      sent += now < 0 ? 0 : static_cast<size_t>(now);
    }
    return false;
  }
  // All that comes until it is closed.
  std::string ReadAll() {
    std::string read;
    char piece[4096];
    pollfd ready = {fd_.get(), POLLIN, 0};
    while (poll(&ready, 1, static_cast<int>(milliseconds(kPatience).count())) > 0) {
      const ssize_t size = recv(fd_.get(), piece, sizeof(piece), 0);
      if (size <= 0) return read;
      read.append(piece, static_cast<size_t>(size));
    }
    ADD_FAILURE() << "it stays open";
    return read;
  }
  // False: the other side has closed it, and all that it sent before was read.
  bool IsOpen() const {
    char byte;
    const ssize_t size = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return size > 0 || (size < 0 && errno == EAGAIN);
  }
  // Whether the other side still answers; false once it has closed. Too many of these, and gRPC
  // closes it.
  bool Answers() {
    if (!Send(Frame(kPing, 0, 0, "flotilla"))) return false;
    const std::string pong = Frame(kPing, kAck, 0, "flotilla");
    std::string read;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      pollfd ready = {fd_.get(), POLLIN, 0};
      if (poll(&ready, 1, 100) == 0) continue;
      char piece[4096];
      const ssize_t size = recv(fd_.get(), piece, sizeof(piece), 0);
      if (size <= 0) return false;
      read.append(piece, static_cast<size_t>(size));
      if (read.find(pong) != std::string::npos) return true;
    }
    return false;
  }

 private:
  UniqueFd fd_;
  uint32_t next_ = 1;  // stream
};

TEST(GrpcFloodTest, WhoResetsCallsAsFastAsItOpensThemIsShutOut) {
  RouterHarness harness;
  RawConnection flood(harness.app().grpc_port());
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool open = true;
  while (open && std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < 50 && open; ++i) open = flood.Open(1) && flood.ResetLast(1);
  }
  EXPECT_FALSE(open) << "it was not broken off";
  EXPECT_TRUE(harness.WaitForMetricAtLeast(kFlooded, 1));
  EXPECT_FALSE(RawConnection(harness.app().grpc_port()).Answers()) << "it came in again";
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"Hello","max_tokens":4})").status, 200);
}

TEST(GrpcFloodTest, WhoResetsManyCallsOnceIsNot) {
  RouterHarness harness;
  RawConnection client(harness.app().grpc_port());
  EXPECT_TRUE(client.Open(300));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.IsOpen());
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(client.ResetLast(300));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.IsOpen()) << "it was broken off";
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(client.Answers());
  EXPECT_EQ(harness.Metric(kFlooded), 0);
}

TEST(GrpcFloodTest, OfTooManyOpenCallsThoseOfTheGreediestEnd) {
  HarnessOptions options;
  options.grpc.connections.max_grpc_calls = 100;
  RouterHarness harness(options);
  RawConnection modest(harness.app().grpc_port()), greedy(harness.app().grpc_port());
  EXPECT_TRUE(modest.Open(20));
  EXPECT_TRUE(greedy.Open(150));
  EXPECT_TRUE(harness.WaitForMetric(kFlooded, 1));
  EXPECT_TRUE(modest.Answers());
  EXPECT_FALSE(greedy.Answers());
}

TEST(GrpcFloodTest, WhoPingsAllTheTimeIsToldToGo) {
  RouterHarness harness;
  RawConnection modest(harness.app().grpc_port()), flood(harness.app().grpc_port());
  EXPECT_TRUE(modest.Open(20));
  std::string pings;
  for (int i = 0; i < 100; ++i) pings += Frame(kPing, 0, 0, "flotilla");
  flood.Send(pings);
  const std::string answers = flood.ReadAll();
  const size_t go_away = answers.find("too_many_pings");
  ASSERT_NE(go_away, std::string::npos);
  // Its frame's type is before flags, stream, last stream and error code: ENHANCE_YOUR_CALM.
  EXPECT_EQ(answers[go_away - 14], kGoAway);
  EXPECT_EQ(answers[go_away - 1], 11);
  EXPECT_TRUE(modest.Answers());
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"Hello","max_tokens":4})").status, 200);
}

// As clients do to keep an idle connection alive, with no call under way.
TEST(GrpcFloodTest, WhoPingsNowAndThenIsNot) {
  HarnessOptions options;
  options.grpc.min_ping_interval_ms = 20;
  RouterHarness harness(options);
  RawConnection client(harness.app().grpc_port());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.Answers()) << "after " << i;
    std::this_thread::sleep_for(milliseconds(30));
  }
}

// Acknowledgements that it does not read pile up to a bound; then nothing more of it is read.
TEST(GrpcFloodTest, WhoSendsSettingsAndReadsNothingIsLeftAlone) {
  RouterHarness harness;
  RawConnection modest(harness.app().grpc_port());
  RawConnection flood(harness.app().grpc_port(), /*receive_bytes=*/4096);
  std::string settings;
  for (int i = 0; i < 1000; ++i) settings += Frame(kSettings, 0, 0, "");
  EXPECT_TRUE(flood.SendUntilFull(settings, 64 << 20));
  EXPECT_TRUE(modest.Answers());
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"Hello","max_tokens":4})").status, 200);
}

TEST(GrpcFloodTest, ConnectionsAreCounted) {
  HarnessOptions options;
  options.grpc.connections.max_grpc_connections = 2;
  RouterHarness harness(options);
  const uint16_t port = harness.app().grpc_port();
  RawConnection first(port);
  EXPECT_TRUE(first.Answers());
  {
    RawConnection second(port);
    EXPECT_TRUE(second.Answers());
    EXPECT_FALSE(RawConnection(port).Answers());
    EXPECT_EQ(harness.Metric(kFull), 1);
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool let_in = false;
  while (!let_in && std::chrono::steady_clock::now() < until)
    let_in = RawConnection(port).Answers();
  EXPECT_TRUE(let_in) << "one has left";
  EXPECT_TRUE(first.Answers());
}

}  // namespace
}  // namespace flotilla
