#include "common/base/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <random>

#include "common/base/status.h"

namespace flotilla {
namespace {

boost::json::value Parse(const std::string& text) {
  boost::json::value value;
  StrictJsonError error;
  EXPECT_TRUE(ParseStrictJson(text, &value, &error)) << text << ": " << error.message;
  return value;
}

std::string ErrorOf(const std::string& text) {
  boost::json::value value;
  StrictJsonError error;
  EXPECT_FALSE(ParseStrictJson(text, &value, &error)) << text;
  return error.message;
}

// The shortest text that gives the number again.
std::string Shortest(double number) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

TEST(StrictJsonTest, NumbersAreTheNearestDoubles) {
  for (const char* text : {"3.4028234663852886e+38", "0.9092974268256817", "5e-324", "-0.1",
                           "1.7976931348623157e+308", "2.2250738585072014e-308"})
    EXPECT_EQ(Shortest(Parse(text).as_double()), text);
  EXPECT_EQ(Parse("100000000000000000000").as_double(), 1e20);
  EXPECT_EQ(Parse("[1, 2.5E+3, 18446744073709551615]"),
            boost::json::value({1, 2500.0, UINT64_MAX}));
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const double number = std::bit_cast<double>(random());
    if (!std::isfinite(number)) continue;
    EXPECT_EQ(Parse(StrCat("{\"a\": ", Shortest(number), "}")).at("a").to_number<double>(), number);
  }
}

TEST(StrictJsonTest, RefusesWhatTheStandardDoes) {
  for (const char* text : {"", "NaN", "[1,]", "{\"a\": 1,}", "// x\n1", "01", "\"\\ud800\"",
                           "\"\xff\"", "1 2", "{'a': 1}"})
    EXPECT_FALSE(ErrorOf(text).empty());
  EXPECT_THAT(ErrorOf(R"({"a": {"b": 1, "b": 2}})"), ::testing::HasSubstr("'b' is there twice"));
  EXPECT_FALSE(ErrorOf(std::string(kMaxJsonDepth + 1, '[')).empty());
}

}  // namespace
}  // namespace flotilla
