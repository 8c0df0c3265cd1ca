// Strict JSON in, exact JSON out.
#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>

#include "router/json_reader.h"
#include "router/json_writer.h"

namespace flotilla {
namespace {

namespace json = boost::json;

std::string ErrorOf(std::string_view text) {
  json::value value;
  const std::optional<ApiError> error = ParseJson(text, &value);
  return error.has_value() ? error->message : "";
}

TEST(JsonReaderTest, ReadsWhatIsValid) {
  json::value value;
  const std::string_view text =
      R"({"a":[1,-2,1.5,18446744073709551615],"b":{"é":"\u00e9\ud83d\ude00"}})";
  ASSERT_FALSE(ParseJson(text, &value).has_value());
  EXPECT_EQ(value.at("a").at(3).as_uint64(), 18446744073709551615u);
  EXPECT_EQ(value.at("b").at("é").as_string(), "é😀");
}

TEST(JsonReaderTest, RefusesWhatIsNot) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "{\"a\":1,}",
                           "{\"a\" 1}",
                           "[1,2",
                           "{'a':1}",
                           "NaN",
                           "{\"a\":NaN}",
                           "{\"a\":Infinity}",
                           "{\"a\":+1}",
                           "{\"a\":01}",
                           "{\"a\":.5}",
                           "// c\n{}",
                           "{\"a\":1} x",
                           "{}{}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":\"\\ud800\"}",
                           "{\"a\":\"\\udc00x\"}",
                           "{\"a\":\"\xff\"}",
                           "{\"a\":\"\xc3\"}",
                           "{\"a\":\"\xed\xa0\x80\"}",
                           "{\"a\":tru}",
                           "\xef\xbb\xbf{}",
                           "{\"a\":\"",
                           "{\"a\":1e}",
                           "\0"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
}

TEST(JsonReaderTest, RefusesDuplicateKeysButOnlyInOneObject) {
  EXPECT_NE(ErrorOf(R"({"a":1,"a":2})").find("'a' twice"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"x":{"a":1,"b":2,"\u0061":3}})").find("'a' twice"), std::string::npos);
  EXPECT_EQ(ErrorOf(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})"), "");
}

TEST(JsonReaderTest, DepthIsLimited) {
  EXPECT_EQ(ErrorOf(std::string(32, '[') + std::string(32, ']')), "");
  EXPECT_NE(ErrorOf(std::string(33, '[') + std::string(33, ']')), "");
  EXPECT_NE(ErrorOf(std::string(1'000'000, '[')), "");
}

TEST(FieldReaderTest, KeepsTheFirstError) {
  const json::object object = {{"a", "x"}, {"b", true}};
  FieldReader reader(object, "outer.");
  EXPECT_FALSE(reader.Int("a", 0, 5).has_value());
  EXPECT_FALSE(reader.Number("b").has_value());
  ASSERT_TRUE(reader.error().has_value());
  EXPECT_EQ(reader.error()->param, "outer.a");
  EXPECT_EQ(reader.error()->message, "'outer.a' must be an integer from 0 to 5.");
}

TEST(FieldReaderTest, IntegersMayBeWrittenAsWholeNumbers) {
  const json::object object = {{"a", 16.0}, {"b", 16.5}, {"c", nullptr}, {"d", 1e300}};
  FieldReader reader(object);
  EXPECT_EQ(reader.Int("a", 0, 100), 16);
  EXPECT_FALSE(reader.Int("c", 0, 100).has_value());
  EXPECT_FALSE(reader.error().has_value()) << "null is absent";
  EXPECT_FALSE(AsInt(object.at("b"), 0, 100).has_value());
  EXPECT_FALSE(AsInt(object.at("d"), 0, 100).has_value());
}

TEST(FieldReaderTest, SeedsMayHaveAll64Bits) {
  const json::object object = {{"a", 18446744073709551615u}, {"b", -1}, {"c", 0.5}};
  FieldReader reader(object);
  EXPECT_EQ(reader.Uint64("a"), 18446744073709551615u);
  EXPECT_EQ(reader.Uint64("b"), 18446744073709551615u);
  EXPECT_FALSE(reader.error().has_value());
  EXPECT_FALSE(reader.Uint64("c").has_value());
  EXPECT_TRUE(reader.error().has_value());
}

TEST(JsonWriterTest, StringsReadBackTheSame) {
  std::string text;
  for (int c = 0; c < 128; ++c) text.push_back(static_cast<char>(c));
  text += "é😀\"\\";
  std::string out;
  AppendJsonString(text, &out);
  json::value value;
  ASSERT_FALSE(ParseJson(out, &value).has_value()) << out;
  EXPECT_EQ(std::string(value.as_string()), text);
}

TEST(JsonWriterTest, FloatsReadBackTheSameBits) {
  for (float f : {0.0f, -0.5f, 1.0f / 3.0f, -1e-30f, 1e20f, 16777216.0f, -9.25f,
                  std::numeric_limits<float>::denorm_min()}) {
    std::string out;
    AppendJsonFloat(f, &out);
    EXPECT_EQ(std::strtof(out.c_str(), nullptr), f) << out;
    json::value value;
    ASSERT_FALSE(ParseJson(out, &value).has_value()) << out;
    EXPECT_TRUE(value.is_double()) << out;
  }
  std::string out;
  AppendJsonFloat(-std::numeric_limits<float>::infinity(), &out);
  EXPECT_EQ(out, "-9999.0");
}

}  // namespace
}  // namespace flotilla
