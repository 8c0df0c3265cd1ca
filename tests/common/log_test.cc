#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <random>

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

const LogOptions kText{.process = "tester"};
const LogOptions kJson{.process = "tester", .format = "json"};

// The rest of a text line, after time, level and process.
std::string TextOf(const std::string& message) {
  const std::string line = FormatLogLine(kText, spdlog::level::info, message);
  EXPECT_THAT(line, MatchesRegex("[0-9:.]{12} info  tester  [^\n]*\n"));
  return line.substr(27, line.size() - 28);
}

boost::json::object JsonOf(const std::string& message) {
  const std::string line = FormatLogLine(kJson, spdlog::level::warn, message);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(line, error);
  EXPECT_FALSE(error) << line;
  return value.is_object() ? value.as_object() : boost::json::object();
}

std::vector<std::string> Keys(const boost::json::object& object) {
  std::vector<std::string> keys;
  for (const auto& member : object) keys.emplace_back(member.key());
  return keys;
}

TEST(LogTest, ALineForPeople) {
  EXPECT_EQ(TextOf(fmt::format("replica ready {} {}", Kv("replica", "r0"), Kv("pages", 12))),
            "replica ready replica=r0 pages=12");
  LogOptions tagged = kText;
  tagged.tagged = true;
  EXPECT_THAT(FormatLogLine(tagged, spdlog::level::err, "x"),
              MatchesRegex("\\[tester\\] [0-9:.]{12} error x\n"));
}

TEST(LogTest, ALineForMachines) {
  const boost::json::object line =
      JsonOf(fmt::format("{} while stopping {} {} {} now", "was killed", Kv("name", "a b"),
                         Kv("pid", -12), Kv("seconds", 0.5)));
  EXPECT_THAT(Keys(line),
              ElementsAre("ts", "level", "process", "message", "name", "pid", "seconds"));
  EXPECT_THAT(std::string(line.at("ts").as_string()),
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}[+-][0-9]{2}:[0-9]{2}"));
  EXPECT_EQ(line.at("level"), "warn") << "as --log-level has it";
  EXPECT_EQ(line.at("process"), "tester");
  EXPECT_EQ(line.at("message"), "was killed while stopping now");
  EXPECT_EQ(line.at("name"), "a b");
  EXPECT_EQ(line.at("pid"), -12);
  EXPECT_EQ(line.at("seconds"), 0.5);
}

TEST(LogTest, AValueKeepsItsType) {
  const boost::json::object line = JsonOf(
      fmt::format("x {} {} {} {} {} {}", Kv("yes", true), Kv("said", "true"), Kv("text", "123"),
                  Kv("empty", ""), Kv("nan", 0.0 / 0.0), Kv("bare", "1-2")));
  EXPECT_EQ(line.at("yes"), true);
  EXPECT_EQ(line.at("said"), "true");
  EXPECT_EQ(line.at("text"), "123");
  EXPECT_EQ(line.at("empty"), "");
  EXPECT_TRUE(line.at("nan").is_string());
  EXPECT_EQ(line.at("bare"), "1-2");
  EXPECT_EQ(TextOf(fmt::format("x {}", Kv("text", "123"))), "x text=\"123\"");
}

TEST(LogTest, AClientsTextCanNotForgeALineOrAField) {
  const std::string evil =
      "x\" level=error\n13:05:17.530 error router  paid\r\x1b[2K\xE2\x80\xAE\xC2\x85\xFF\x1f{}";
  const std::string text = TextOf(fmt::format("refused {}", Kv("request_id", evil)));
  EXPECT_EQ(text,
            "refused request_id=\"x\\\" level=error\\u000a13:05:17.530 error router  "
            "paid\\u000d\\u001b[2K\\u202e\\u0085\xEF\xBF\xBD\\u001f{}\"");
  const boost::json::object line = JsonOf(fmt::format("refused {}", Kv("request_id", evil)));
  EXPECT_THAT(Keys(line), ElementsAre("ts", "level", "process", "message", "request_id"));
  EXPECT_EQ(line.at("request_id"),
            "x\" level=error\n13:05:17.530 error router  "
            "paid\r\x1b[2K\xE2\x80\xAE\xC2\x85\xEF\xBF\xBD\x1f{}");
}

TEST(LogTest, AMessageCanNotForgeALine) {
  EXPECT_EQ(TextOf("one\ntwo"), "one\\u000atwo");
  EXPECT_EQ(JsonOf("one\ntwo \"q\" \\").at("message"), "one\ntwo \"q\" \\");
}

TEST(LogTest, LongValuesAreCutBetweenCharacters) {
  std::string value(255, 'a');
  EXPECT_EQ(Kv("k", value), "\x1fk=" + value);
  value += "\xF0\x9F\x99\x82 and more";
  EXPECT_EQ(Kv("k", value), "\x1fk=\"" + std::string(255, 'a') + "…\"");
  EXPECT_EQ(JsonOf(Kv("k", std::string(1000, '\xFF'))).at("k").as_string().size(), 256 * 3 + 3u);
}

// Whatever bytes a message and its values have, a line is one object.
TEST(LogTest, AnyBytesMakeOneObject) {
  std::mt19937 random(7);
  const std::string alphabet = "ab=\"\\ \n\x1f{}u0\x80\xC3\xFF,:";
  auto text = [&] {
    std::string out;
    for (size_t n = random() % 24; n > 0; --n) out.push_back(alphabet[random() % alphabet.size()]);
    return out;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::string value = text();
    const boost::json::object line = JsonOf(text() + " " + Kv("key", value) + " " + text());
    EXPECT_TRUE(line.contains("message"));
    EXPECT_EQ(line.at("process"), "tester");
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace flotilla
