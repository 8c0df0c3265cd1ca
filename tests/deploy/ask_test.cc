#include "deploy/launcher/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "deploy/launcher/http_client.h"
#include "deploy/launcher/router_process.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
  EXPECT_EQ(TextOfChunk(R"({"choices":[{"index":0,"text":" Paris"}]})").value(), " Paris");
  EXPECT_EQ(TextOfChunk(R"({"choices":[],"usage":{}})").value(), "");
  EXPECT_THAT(std::string(TextOfChunk(R"({"error":{"message":"too long"}})").status().message()),
              HasSubstr("too long"));
  EXPECT_FALSE(TextOfChunk("not json").ok());
}

TEST(AskTest, QuestionsAreEscaped) {
  AskOptions options;
  options.question = "say \"hi\"\n";
  EXPECT_THAT(CompletionBody(options, "m"), HasSubstr(R"(say \"hi\"\n<|im_end|>)"));
}

TEST(AskTest, Urls) {
  EXPECT_EQ(ParseHttpUrl("http://h:81/v1")->port, "81");
  EXPECT_EQ(ParseHttpUrl("http://h")->port, "80");
  EXPECT_EQ(ParseHttpUrl("http://[::1]:9")->host, "::1");
  EXPECT_FALSE(ParseHttpUrl("https://h").ok());
  EXPECT_FALSE(ParseHttpUrl("http://:80").ok());
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
