#include "deploy/launcher/log_mux.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::StartsWith;

TEST(LogMuxTest, CutsBytesIntoLines) {
  LineBuffer buffer;
  std::vector<std::string> lines;
  auto take = [&](const std::string& line) { lines.push_back(line); };
  buffer.Append("one\nt", take);
  EXPECT_THAT(lines, ElementsAre("one"));
  buffer.Append("wo\n\n\nthree", take);
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  buffer.Flush(take);
  EXPECT_THAT(lines, ElementsAre("one", "two", "three"));
  EXPECT_EQ(buffer.last(), "three");
  buffer.Append("--port: not a number\nRun with --help for more information.\n", take);
  EXPECT_EQ(buffer.last(), "--port: not a number");
}

TEST(LogMuxTest, BoundsALine) {
  LineBuffer buffer;
  std::string line;
  buffer.Append(std::string(1 << 20, 'x') + "\n", [&](const std::string& l) { line = l; });
  EXPECT_EQ(line.size(), LineBuffer::kMaxLineBytes);
}

TEST(LogMuxTest, FindsTheMessageInALogLine) {
  EXPECT_EQ(MessageOfLogLine("13:05:17.530 error worker-0  it failed reason=\"a  b\""),
            "it failed reason=\"a  b\"");
  for (const char* other : {"", "plain words", "13:05:17.530 no name", "ab:05:17.530 error x  y"})
    EXPECT_EQ(MessageOfLogLine(other), other);
}

TEST(LogMuxTest, PrefixesText) {
  EXPECT_EQ(LogMux(false, false).Format("r0/worker-1", "hello"), "[r0/worker-1] hello\n");
  const std::string colored = LogMux(false, true).Format("router", "hello");
  EXPECT_EQ(colored.substr(0, 2), "\x1b[");
  EXPECT_NE(colored.find("[router]\x1b[0m hello\n"), std::string::npos);
}

TEST(LogMuxTest, NoLineMovesTheCursor) {
  EXPECT_EQ(LogMux(false, false).Format("router", "a\x1b[2Kb"), "[router] a\\u001b[2Kb\n");
}

TEST(LogMuxTest, OurOwnObjectsGetTheirReplica) {
  const LogMux mux(true, false);
  const std::string own = R"({"ts":"2026-01-01T00:00:00.000+00:00","level":"info"})";
  EXPECT_EQ(mux.Format("router", own), own + "\n");
  EXPECT_EQ(mux.Format("r1/worker-0", own),
            own.substr(0, own.size() - 1) + ",\"replica\":\"r1\"}\n");
}

TEST(LogMuxTest, WhatIsNoObjectOfOursBecomesOne) {
  const LogMux mux(true, false);
  const std::string cut = R"({"ts":"2026-01-01T00:00:00.000+00:00","mess)";
  for (const std::string& line : {std::string("say \"hi\"\x01\x1fk=v\\"), cut, std::string("{}")}) {
    std::string text = line;
    std::erase(text, '\x1f');
    const std::string out = mux.Format("r1/worker-0", line);
    EXPECT_THAT(out, StartsWith("{\"ts\":\""));
    EXPECT_THAT(out, EndsWith("\"level\":\"warn\",\"process\":\"worker-0\",\"message\":" +
                              QuotedText(text) + ",\"replica\":\"r1\"}\n"));
  }
}

}  // namespace
}  // namespace flotilla
