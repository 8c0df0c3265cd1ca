#include "deploy/launcher/log_mux.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace flotilla {
namespace {

using testing::ElementsAre;

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

TEST(LogMuxTest, KeepsEveryLineAnObjectInJson) {
  const LogMux mux(true, false);
  EXPECT_EQ(mux.Format("router", R"({"level":"info"})"), "{\"level\":\"info\"}\n");
  EXPECT_EQ(mux.Format("router", "say \"hi\"\x01\\"),
            "{\"process\":\"router\",\"message\":\"say \\\"hi\\\"\\u0001\\\\\"}\n");
}

}  // namespace
}  // namespace flotilla
