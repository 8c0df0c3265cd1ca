// What `flotilla bench serve` sends, and what it makes of the answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/json.hpp>
#include <mutex>
#include <thread>

#include "common/base/clock.h"
#include "common/base/listen.h"
#include "deploy/launcher/served/load_run.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMs = kNsPerMs;

ServedRequest Answered(int64_t sent_ms, int64_t ttft_ms, std::vector<int64_t> gaps_ms) {
  ServedRequest request;
  request.sent_ns = sent_ms * kMs;
  request.first_ns = request.last_ns = (sent_ms + ttft_ms) * kMs;
  for (const int64_t gap : gaps_ms) {
    request.gaps_ns.push_back(gap * kMs);
    request.last_ns += gap * kMs;
  }
  request.end_ns = request.last_ns + kMs;
  request.prompt_tokens = 10;
  request.output_tokens = static_cast<uint32_t>(gaps_ms.size()) + 1;
  return request;
}

double Figure(const boost::json::object& figures, const char* name) {
  return figures.at(name).to_number<double>();
}

TEST(ServedStatsTest, LatenciesAreThoseOfAnsweredRequests) {
  ServedRequest failed = Answered(0, 1, {});
  failed.error = "HTTP 429";
  const auto figures =
      ServedFigures({Answered(100, 20, {10, 30}), Answered(100, 40, {20, 20}), failed}, {0, 2}, {});
  EXPECT_EQ(Figure(figures, "requests"), 2);
  EXPECT_EQ(Figure(figures, "failed"), 1);
  EXPECT_EQ(Figure(figures, "ttft_mean"), 30);
  EXPECT_EQ(Figure(figures, "ttft_p50"), 20);
  EXPECT_EQ(Figure(figures, "ttft_p99"), 40);
  EXPECT_EQ(Figure(figures, "itl_mean"), 20);
  EXPECT_EQ(Figure(figures, "itl_p90"), 30);
  EXPECT_EQ(Figure(figures, "tpot_mean"), 20);
  EXPECT_EQ(Figure(figures, "e2el_p50"), 61);
  // From the first request, which failed, at 0 ms to the last end at 181 ms.
  EXPECT_NEAR(Figure(figures, "seconds"), 0.181, 1e-9);
  EXPECT_NEAR(Figure(figures, "out_tok_s"), 6 / 0.181, 1e-6);
  EXPECT_NEAR(Figure(figures, "total_tok_s"), 26 / 0.181, 1e-6);
  EXPECT_EQ(figures.at("errors").as_object().at("HTTP 429").to_number<int>(), 1);
  EXPECT_FALSE(figures.contains("good"));
  EXPECT_THAT(ServedTable(figures), HasSubstr("failed, 1 times: HTTP 429"));
}

TEST(ServedStatsTest, GoodputCountsWhatKeepsEveryLimit) {
  const auto slo = ParseSlo("ttft:30,tpot:15,e2el:100");
  ASSERT_TRUE(slo.ok());
  ServedRequest failed = Answered(0, 1, {});
  failed.error = "HTTP 503";
  const auto figures =
      ServedFigures({Answered(0, 30, {15, 15}), Answered(0, 31, {1}), Answered(0, 1, {16}),
                     Answered(0, 30, {15, 15, 15, 15, 15}), failed},
                    {1, 0}, *slo);
  EXPECT_EQ(Figure(figures, "good"), 1);
  EXPECT_THAT(ServedTable(figures), HasSubstr("1 requests kept --goodput"));
}

TEST(ServedStatsTest, NothingAnsweredHasFiguresToo) {
  ServedRequest failed;
  failed.error = "the connection: refused";
  const auto figures = ServedFigures({failed}, {0, 1}, {});
  EXPECT_EQ(Figure(figures, "out_tok_s"), 0);
  EXPECT_TRUE(figures.at("ttft_p99").is_null()) << "0 ms would be a figure";
  EXPECT_THAT(ServedTable(figures), HasSubstr("ttft            -"));
}

TEST(ServedStatsTest, LimitsThatAreNoneAreNamed) {
  for (const char* text : {"", "ttft", "ttft:", "ttft:x", "ttft:5x", "ttft:0", "ttft:-1", "itl:5",
                           "ttft:5,", "ttft:5,ttft:6"}) {
    const auto slo = ParseSlo(text);
    ASSERT_FALSE(slo.ok()) << text;
    EXPECT_THAT(std::string(slo.status().message()), HasSubstr("--goodput")) << text;
  }
}

TEST(ArrivalTimesTest, AreExponentialAndTheSameForASeed) {
  const std::vector<int64_t> times = ArrivalTimes(20'000, 50, 7);
  EXPECT_EQ(times, ArrivalTimes(20'000, 50, 7));
  EXPECT_NE(times, ArrivalTimes(20'000, 50, 8));
  EXPECT_EQ(times[0], 0);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = static_cast<double>(times[i] - times[i - 1]) * 1e-9;
    ASSERT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / static_cast<double>(times.size() - 1);
  EXPECT_NEAR(mean, 0.02, 0.001);
  EXPECT_NEAR(squares / static_cast<double>(times.size() - 1), 2 * mean * mean, 0.0002);
}

TEST(ArrivalTimesTest, WithoutARateAllAreThereAtOnce) {
  EXPECT_THAT(ArrivalTimes(3, 0, 1), ElementsAre(0, 0, 0));
}

constexpr char kStream[] =
    "data: {\"choices\":[{\"text\":\"\"}]}\n\n"
    "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

TEST(AnswerReaderTest, CountsPiecesOfTextHoweverTheBytesCome) {
  const std::string stream = kStream;
  for (size_t size = 1; size <= stream.size(); ++size) {
    ServedRequest request;
    AnswerReader reader(&request);
    int64_t now = 0;
    for (size_t at = 0; at < stream.size(); at += size)
      reader.OnBody(std::string_view(stream).substr(at, size), ++now);
    reader.OnEnd(200, "", ++now);
    EXPECT_EQ(request.error, "");
    EXPECT_EQ(reader.pieces(), 2u);
    EXPECT_EQ(request.gaps_ns.size(), 1u);
    EXPECT_EQ(request.prompt_tokens, 7u);
    EXPECT_EQ(request.output_tokens, 5u);
    EXPECT_EQ(request.cached_tokens, 4u);
    EXPECT_EQ(request.end_ns, now);
  }
}

TEST(AnswerReaderTest, SaysWhatWentWrong) {
  const auto error = [](const std::string& body, unsigned status, const std::string& connection) {
    ServedRequest request;
    AnswerReader reader(&request);
    reader.OnBody(body, 1);
    reader.OnEnd(status, connection, 2);
    return request.error;
  };
  EXPECT_EQ(error(R"({"error":{"message":"too many"}})", 429, ""), "HTTP 429: too many");
  EXPECT_EQ(error("<html>", 502, ""), "HTTP 502");
  EXPECT_EQ(error("", 0, "refused"), "the connection: refused");
  EXPECT_EQ(error("data: {\"error\":{\"message\":\"lost\"}}\n\n", 200, ""), "in the stream: lost");
  EXPECT_EQ(error("data: {\n\n", 200, ""), "an event is not JSON");
  EXPECT_EQ(error("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", 200, ""),
            "the stream ended without [DONE]");
  EXPECT_EQ(error("data: [DONE]\n\n", 200, ""), "an answer without text");
}

// Answers every request of every connection alike, and counts.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::string answer)
      : answer_(std::move(answer)),
        listener_(ListenTcp("127.0.0.1", 0, &port_).value()),
        acceptor_([this] { Accept(); }) {}
  ~ScriptedServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  HttpUrl url() const { return {"127.0.0.1", port_, nullptr}; }
  int connections() const { return connections_; }
  int requests() const { return requests_; }
  std::string last_head() {
    const std::lock_guard lock(mutex_);
    return last_head_;
  }

 private:
  void Accept() {
    for (;;) {
      UniqueFd client(accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      ++connections_;
      threads_.emplace_back([this, fd = std::move(client)] {
        while (Serve(fd.get())) {
        }
      });
    }
  }
  bool Serve(int fd) {
    std::string head;
    char byte = 0;
    while (!head.ends_with("\r\n\r\n") && recv(fd, &byte, 1, 0) == 1) head.push_back(byte);
    if (!head.ends_with("\r\n\r\n")) return false;
    const size_t length = std::stoul(head.substr(head.find("Content-Length: ") + 16));
    std::string body(length, ' ');
    recv(fd, body.data(), length, MSG_WAITALL);
    {
      const std::lock_guard lock(mutex_);
      last_head_ = head;
    }
    ++requests_;
    send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    if (answer_.find("Connection: close") == std::string::npos) return true;
    shutdown(fd, SHUT_WR);
    return false;
  }

  const std::string answer_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  std::mutex mutex_;
  std::string last_head_;
  std::atomic<int> requests_{0}, connections_{0};
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

std::string Http(const std::string& status, const std::string& body, const std::string& more = "") {
  return StrCat("HTTP/1.1 ", status, "\r\n", more, "Content-Length: ", body.size(), "\r\n\r\n",
                body);
}

LoadRunOptions Options(const HttpUrl& url, ServedLoad load) {
  LoadRunOptions options;
  options.url = url;
  options.model = "m";
  options.load = load;
  return options;
}

std::vector<RandomRequest> Requests(uint32_t count) {
  RandomWorkload workload;
  workload.requests = count;
  workload.input_len = workload.output_len = {4, 4};
  return MakeRandomRequests(workload, 100, 100).value();
}

TEST(LoadRunTest, ClientsKeepTheirConnections) {
  ScriptedServer server(Http("200 OK", kStream));
  LoadRunOptions options = Options(server.url(), {0, 3});
  options.api_key = "secret";
  const auto answers = RunLoad(Requests(30), options);
  ASSERT_TRUE(answers.ok());
  ASSERT_EQ(answers->size(), 30u);
  for (const ServedRequest& answer : *answers) EXPECT_EQ(answer.error, "");
  EXPECT_EQ(server.connections(), 3);
  EXPECT_THAT(server.last_head(), HasSubstr("Authorization: Bearer secret"));
}

TEST(LoadRunTest, AServerThatClosesEachConnectionIsFine) {
  ScriptedServer server(Http("200 OK", kStream, "Connection: close\r\n"));
  const auto answers = RunLoad(Requests(8), Options(server.url(), {0, 2}));
  ASSERT_TRUE(answers.ok());
  for (const ServedRequest& answer : *answers) EXPECT_EQ(answer.error, "");
  EXPECT_EQ(server.requests(), 8);
}

TEST(LoadRunTest, AnOpenLoadWaitsForNobody) {
  ScriptedServer server(Http("200 OK", kStream));
  const int64_t begin_ns = RealClock::Now();
  const auto answers = RunLoad(Requests(20), Options(server.url(), {400, 0}));
  ASSERT_TRUE(answers.ok());
  const std::vector<int64_t> times = ArrivalTimes(20, 400, 0);
  for (size_t i = 0; i < 20; ++i) EXPECT_GE((*answers)[i].sent_ns - begin_ns, times[i]) << i;
}

TEST(LoadRunTest, RefusalsAndDeadServersAreInTheAnswers) {
  ScriptedServer server(Http("429 Too Many Requests", R"({"error":{"message":"later"}})"));
  auto answers = RunLoad(Requests(2), Options(server.url(), {0, 1}));
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ((*answers)[1].error, "HTTP 429: later");
  uint16_t port = 0;
  { const UniqueFd closed_again = ListenTcp("127.0.0.1", 0, &port).value(); }
  answers = RunLoad(Requests(2), Options({"127.0.0.1", port, nullptr}, {0, 2}));
  ASSERT_TRUE(answers.ok());
  ASSERT_EQ(answers->size(), 2u);
  EXPECT_THAT((*answers)[0].error, HasSubstr("the connection: "));
}

TEST(LoadRunTest, StopsWithWhatItHas) {
  ScriptedServer server(Http("200 OK", "data: {}\n\n", "X: y\r\n"));
  std::atomic<bool> stop{true};
  LoadRunOptions options = Options(server.url(), {0.001, 0});  // the second comes in 16 minutes
  options.stop = &stop;
  const auto answers = RunLoad(Requests(2), options);
  ASSERT_TRUE(answers.ok());
  EXPECT_LE(answers->size(), 1u);
}

}  // namespace
}  // namespace flotilla
