#include "common/base/flags.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/flag_checks.h"

namespace flotilla {
namespace {

TEST(FlagsTest, Bytes) {
  const std::vector<std::pair<const char*, uint64_t>> good = {{"0", 0},
                                                              {"1536", 1536},
                                                              {"64KiB", 64 << 10},
                                                              {"2GiB", 2ull << 30},
                                                              {"500MB", 500'000'000},
                                                              {"1.5K", 1536},
                                                              {"7B", 7}};
  for (const auto& [text, bytes] : good) {
    const StatusOr<uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const char* text : {"", "lots", "-1", "1 KiB", "1TiB", "9999999999GiB", "nan"})
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
}

TEST(FlagsTest, FormattedBytesAreForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(3ull << 29), "1.5 GiB");
  EXPECT_EQ(FormatBytes(300 << 20), "300 MiB");
}

class SharedFlagTest : public testing::Test {
 protected:
  static constexpr SharedFlag kFlag = {"--max-things", "Most things", 1, 64};

  // The error's message; empty if it was taken.
  std::string Parse(const std::string& value) {
    CLI::App app;
    AddFlag(&app, kFlag, &things_);
    try {
      app.parse("--max-things " + value);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return {};
  }
  uint32_t things_ = 7;
};

TEST(FlagsTest, OriginsAreWhatBrowsersSend) {
  const CLI::Validator validator = OriginFlag();
  const auto refusal = [&](std::string text) { return validator(text); };
  for (const char* good : {"*", "null", "https://a.example", "http://localhost:3000",
                           "http://[::1]:8080", "http://127.0.0.1", "chrome-extension://abc"})
    EXPECT_EQ(refusal(good), "");
  for (const char* bad : {"", "foo", "a.example", "https://", "https://a.example/",
                          "https://a.example/chat", "https://A.example", "https://a.example:443",
                          "http://a.example:80", "https://a.example:", "https://a.example:x",
                          "https://u@a.example", "https://*.a.example", "http://[::1", "://a"})
    EXPECT_NE(refusal(bad), "") << bad;
  EXPECT_EQ(refusal("https://a.example/"),
            "'https://a.example/' is not what a browser sends as Origin: scheme://host[:port] in "
            "small letters, without a path or the scheme's own port, such as "
            "https://chat.example.com; '*' is any");
}

TEST_F(SharedFlagTest, TakesItsRange) {
  for (const uint32_t value : {1u, 64u}) {
    EXPECT_EQ(Parse(std::to_string(value)), "");
    EXPECT_EQ(things_, value);
  }
}

TEST_F(SharedFlagTest, RefusesAllElseByName) {
  for (const char* value : {"0", "65", "-1", "x", "4294967297"})
    EXPECT_NE(Parse(value).find("--max-things"), std::string::npos) << value;
}

TEST_F(SharedFlagTest, ShowsRangeAndDefault) {
  CLI::App app;
  AddFlag(&app, kFlag, &things_);
  EXPECT_NE(app.help().find("--max-things UINT:UINT in [1 - 64]=7"), std::string::npos)
      << app.help();
}

}  // namespace
}  // namespace flotilla
