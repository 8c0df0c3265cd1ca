#include "deploy/launcher/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <sstream>
#include <thread>
#include <vector>

#include "common/base/listen.h"
#include "common/base/unique_fd.h"
#include "common/http/http_client.h"
#include "deploy/launcher/router_process.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Answers one connection after another with the next of `answers`, then closes it.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> answers)
      : listener_(ListenTcp("127.0.0.1", 0, &port_).value()),
        thread_([this, answers = std::move(answers)] {
          for (const std::string& answer : answers) Serve(answer);
        }) {}
  ~ScriptedServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void Serve(const std::string& answer) const {
    const UniqueFd client(accept(listener_.get(), nullptr, nullptr));
    std::string request;
    char byte = 0;
    while (!request.ends_with("\r\n\r\n") && recv(client.get(), &byte, 1, 0) == 1)
      request.push_back(byte);
    send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    shutdown(client.get(), SHUT_WR);
    while (recv(client.get(), &byte, 1, 0) == 1) continue;  // the rest of the request's body
  }

  uint16_t port_ = 0;
  UniqueFd listener_;
  std::thread thread_;
};

std::string Http(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

int AskAt(const std::string& url, std::string* out, std::string* err) {
  AskOptions options;
  options.question = "Where?";
  options.chat.server.url = url;
  options.chat.url_given = true;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = Ask(options);
  *out = testing::internal::GetCapturedStdout();
  *err = testing::internal::GetCapturedStderr();
  return code;
}

constexpr char kModels[] = R"({"object":"list","data":[{"id":"m"}]})";

TEST(AskTest, StreamsTheAnswer) {
  const ScriptedServer server(
      {Http("200 OK", kModels),
       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
       "34\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"In Par\"}}]}\n\n\r\n"
       "31\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"is.\"}}]}\n\n\r\n"
       "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"});
  std::string out, err;
  EXPECT_EQ(AskAt(server.url(), &out, &err), 0) << err;
  EXPECT_EQ(out, "In Paris.\n");
}

TEST(AskTest, TheModelThatIsNamedIsAsked) {
  constexpr char kTwo[] = R"({"object":"list","data":[{"id":"m"},{"id":"other"}]})";
  const ScriptedServer server({Http("200 OK", kTwo), Http("200 OK", kTwo), Http("200 OK", kTwo)});
  ChatOptions options;
  options.server.url = server.url();
  options.url_given = true;
  EXPECT_EQ(ChatServer::Find(options)->model(), "m");
  options.model = "other";
  EXPECT_EQ(ChatServer::Find(options)->model(), "other");
  options.model = "none.gguf";
  EXPECT_EQ(ChatServer::Find(options).status().message(),
            StrCat("the server at ", server.url(), " has no model 'none.gguf'; it has m, other"));
}

TEST(AskTest, TheQuestionMayComeFromStdin) {
  const auto question = [](const std::string& given, const std::string& text, bool terminal) {
    std::istringstream in(text);
    return QuestionOf(given, in, terminal).value_or("none");
  };
  EXPECT_EQ(question("Where?", "not this", false), "Where?");
  EXPECT_EQ(question("", "Who?\nWhen?\n", false), "Who?\nWhen?");
  EXPECT_EQ(question("-", "Who?\n", true), "Who?");
  EXPECT_EQ(question("", "Who?\n", true), "none");
  EXPECT_EQ(question("-", "\n", false), "none");
}

TEST(AskTest, SaysWhatTheServerSays) {
  const ScriptedServer server(
      {Http("200 OK", kModels),
       Http("429 Too Many Requests", R"({"error":{"message":"the queue is full"}})")});
  std::string out, err;
  EXPECT_EQ(AskAt(server.url(), &out, &err), 1);
  EXPECT_EQ(err, "flotilla: error: the queue is full\n");
}

TEST(AskTest, ABrokenStreamIsAnError) {
  const ScriptedServer server({Http("200 OK", kModels),
                               "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
                               "data: {\"choices\":[{\"delta\":{\"content\":\"In\"}}]}\n\n"});
  std::string out, err;
  EXPECT_EQ(AskAt(server.url(), &out, &err), 1);
  EXPECT_THAT(err, HasSubstr(" broke: "));
}

TEST(AskTest, NobodyThere) {
  uint16_t port = 0;
  { const auto probe = ListenTcp("127.0.0.1", 0, &port); }
  std::string out, err;
  EXPECT_EQ(AskAt("http://127.0.0.1:" + std::to_string(port), &out, &err), 1);
  EXPECT_THAT(err, HasSubstr("can't reach 127.0.0.1"));
}

TEST(AskTest, NobodyWaitsForAServerThatSaysNothing) {
  uint16_t port = 0;
  const UniqueFd listener = ListenTcp("127.0.0.1", 0, &port).value();  // accepts nobody
  const auto ask = [&](const HttpPatience& patience) {
    const auto all = [](unsigned, std::string_view) { return true; };
    return SendHttp({"127.0.0.1", port, nullptr}, {.target = "/v1/models"}, all, patience).status();
  };
  const Status late = ask({.timeout_ms = 30});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_EQ(late.message(),
            StrCat("127.0.0.1:", port, " does not answer /v1/models within 0.03 s"));
  std::atomic<bool> stop{false};
  std::thread interrupts([&] { stop = true; });
  EXPECT_TRUE(absl::IsCancelled(ask({.stop = &stop})));
  interrupts.join();
}

TEST(AskTest, EventsMayBeCutAnywhere) {
  const std::string stream = "data: {\"a\":1}\r\n\r\n: comment\ndata:two\n\ndata: [DONE]\n\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    SseParser parser;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += piece)
      parser.Append(stream.substr(at, piece), [&](std::string_view e) { events.emplace_back(e); });
    EXPECT_THAT(events, ElementsAre("{\"a\":1}", "two", "[DONE]")) << piece;
  }
}

TEST(AskTest, TakesTextAndErrorsFromChunks) {
  EXPECT_EQ(TextOfChunk(R"({"choices":[{"index":0,"delta":{"content":" Paris"}}]})").value(),
            " Paris");
  EXPECT_EQ(TextOfChunk(R"({"choices":[],"usage":{}})").value(), "");
  EXPECT_THAT(std::string(TextOfChunk(R"({"error":{"message":"too long"}})").status().message()),
              HasSubstr("too long"));
  EXPECT_FALSE(TextOfChunk("not json").ok());
}

TEST(AskTest, QuestionsAreEscaped) {
  EXPECT_THAT(ChatBody({}, "m", {{"user", "say \"hi\"\n"}}),
              HasSubstr(R"("content":"say \"hi\"\n")"));
}

TEST(AskTest, Urls) {
  EXPECT_EQ(ParseHttpUrl("http://h:81/v1")->port, 81);
  EXPECT_EQ(ParseHttpUrl("http://h")->port, 80);
  EXPECT_EQ(ParseHttpUrl("http://[::1]:9")->host, "::1");
  EXPECT_EQ(ParseHttpUrl("http://h")->tls, nullptr);
  EXPECT_EQ(ParseHttpUrl("https://h")->port, 443);
  EXPECT_NE(ParseHttpUrl("https://h:8443")->tls, nullptr);
  EXPECT_FALSE(ParseHttpUrl("ftp://h").ok());
  EXPECT_FALSE(ParseHttpUrl("http://:80").ok());
  EXPECT_EQ(ParseHttpUrl("http://h:99999").status().message(),
            "'http://h:99999': '99999' is no port");
  EXPECT_FALSE(ParseHttpUrl("http://h:0").ok());
  EXPECT_FALSE(ParseHttpUrl("http://h:").ok());
  const auto error = [](const std::string& url, const TlsPaths& tls) {
    return std::string(ParseHttpUrl(url, tls).status().message());
  };
  EXPECT_EQ(error("http://h", {"", "", "ca"}), "--ca-file is for a URL that begins with https://");
  EXPECT_THAT(error("https://h", {"", "", "/nothing"}), HasSubstr("--ca-file: can't read"));
  EXPECT_EQ(error("https://h", {"a", "", ""}), "--cert-file needs --key-file");
}

TEST(AskTest, ReadyLinesOfTheRouter) {
  const auto ports = ParseRouterReady("READY http=8000 grpc=50051");
  ASSERT_TRUE(ports.has_value());
  EXPECT_EQ(ports->http, 8000);
  EXPECT_EQ(ports->grpc, 50051);
  for (const char* wrong : {"", "READY", "READY http=1", "READY http=x grpc=2", "NO http=1 grpc=2",
                            "READY http=70000 grpc=1"})
    EXPECT_FALSE(ParseRouterReady(wrong).has_value()) << wrong;
}

}  // namespace
}  // namespace flotilla
