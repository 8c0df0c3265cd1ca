// Strict JSON in, exact JSON out.
#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>

#include "router/base/json_reader.h"
#include "router/base/json_writer.h"

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
  EXPECT_EQ(reader.error()->message, "'outer.a' must be an integer, not a string.");
}

TEST(FieldReaderTest, ErrorsSayWhatTheValueIs) {
  const json::object object = {{"text", "8"},   {"flag", true},      {"half", 0.5},
                               {"six", 6},      {"list", {1, 2}},    {"object", json::object()},
                               {"huge", 1e300}, {"most", UINT64_MAX}};
  const auto message = [&](auto read) {
    FieldReader reader(object);
    read(&reader);
    return reader.error().value_or(ApiError()).message;
  };
  const auto integer = [&](const char* name) {
    return message([&](FieldReader* reader) { reader->Int(name, 0, 5); });
  };
  EXPECT_EQ(integer("text"), "'text' must be an integer, not a string.");
  EXPECT_EQ(integer("flag"), "'flag' must be an integer, not a boolean.");
  EXPECT_EQ(integer("half"), "'half' must be an integer, not a fraction.");
  EXPECT_EQ(integer("six"), "'six' must be an integer from 0 to 5.");
  EXPECT_EQ(integer("huge"), "'huge' must be an integer from 0 to 5.");
  EXPECT_EQ(integer("most"), "'most' must be an integer from 0 to 5.");
  EXPECT_EQ(message([](FieldReader* r) { r->Number("list"); }),
            "'list' must be a number, not an array.");
  EXPECT_EQ(message([](FieldReader* r) { r->Bool("six"); }),
            "'six' must be true or false, not a number.");
  EXPECT_EQ(message([](FieldReader* r) { r->String("flag"); }),
            "'flag' must be a string, not a boolean.");
  EXPECT_EQ(message([](FieldReader* r) { r->Object("text"); }),
            "'text' must be an object, not a string.");
  EXPECT_EQ(message([](FieldReader* r) { r->Ints("object", 1, 0, 5); }),
            "'object' must be an array of integers, not an object.");
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
