// Numbers read, rounded and written as Python does it.
#include "common/template/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace flotilla::jinja {
namespace {

TEST(TemplateNumbersTest, FloatRepr) {
  EXPECT_EQ(FloatRepr(0.1), "0.1");
  EXPECT_EQ(FloatRepr(-0.0), "-0.0");
  EXPECT_EQ(FloatRepr(1e16), "1e+16");
  EXPECT_EQ(FloatRepr(9999999999999998), "9999999999999998.0");
  EXPECT_EQ(FloatRepr(0.0001), "0.0001");
  EXPECT_EQ(FloatRepr(0.00001234), "1.234e-05");
  EXPECT_EQ(FloatRepr(1e100), "1e+100");
  EXPECT_EQ(FloatRepr(5e-324), "5e-324");
  EXPECT_EQ(FloatRepr(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(FloatRepr(INFINITY), "inf");
  EXPECT_EQ(FloatRepr(-INFINITY), "-inf");
  EXPECT_EQ(FloatRepr(-NAN), "nan");
}

TEST(TemplateNumbersTest, FloatReprReadsBackAsTheSameNumber) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t bits = rng();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(ParseFloat(FloatRepr(value)), value);
  }
}

TEST(TemplateNumbersTest, ParseInt) {
  struct {
    const char* text;
    int base;
    IntParse result;
    int64_t value;
  } cases[] = {
      {"12", 10, IntParse::kOk, 12},
      {" -1_2\n", 10, IntParse::kOk, -12},
      {"+5", 10, IntParse::kOk, 5},
      {"", 10, IntParse::kInvalid, 0},
      {"-", 10, IntParse::kInvalid, 0},
      {"1__2", 10, IntParse::kInvalid, 0},
      {"_1", 10, IntParse::kInvalid, 0},
      {"1_", 10, IntParse::kInvalid, 0},
      {"- 1", 10, IntParse::kInvalid, 0},
      {"1.0", 10, IntParse::kInvalid, 0},
      {"ff", 16, IntParse::kOk, 255},
      {"0xFF", 16, IntParse::kOk, 255},
      {"0x_f", 16, IntParse::kOk, 15},
      {"0x", 16, IntParse::kInvalid, 0},
      {"0xff", 10, IntParse::kInvalid, 0},
      {"0b101", 0, IntParse::kOk, 5},
      {"0o17", 0, IntParse::kOk, 15},
      {"017", 0, IntParse::kInvalid, 0},
      {"00", 0, IntParse::kOk, 0},
      {"0b1", 16, IntParse::kOk, 0xb1},
      {"z", 36, IntParse::kOk, 35},
      {"9223372036854775807", 10, IntParse::kOk, INT64_MAX},
      {"-9223372036854775808", 10, IntParse::kOk, INT64_MIN},
      {"9223372036854775808", 10, IntParse::kOutOfRange, 0},
      {"99999999999999999999999", 10, IntParse::kOutOfRange, 0},
  };
  for (const auto& c : cases) {
    int64_t value = 0;
    EXPECT_EQ(ParseInt(c.text, c.base, &value), c.result) << c.text;
    if (c.result == IntParse::kOk) {
      EXPECT_EQ(value, c.value) << c.text;
    }
  }
}

TEST(TemplateNumbersTest, ParseFloat) {
  for (const char* text : {"", "x", "1e", "1e+", "_1", "1_", "1._5", ".", "e5", "1 2", "0x10",
                           "infinit", "nanx", "--1"}) {
    EXPECT_FALSE(ParseFloat(text).has_value()) << text;
  }
  EXPECT_EQ(ParseFloat(" 1_0.2_5e1_0 "), 10.25e10);
  EXPECT_EQ(ParseFloat("1."), 1.0);
  EXPECT_EQ(ParseFloat("-.5"), -0.5);
  EXPECT_EQ(ParseFloat("+InFiNiTy"), INFINITY);
  EXPECT_EQ(ParseFloat("1e999"), INFINITY);
  EXPECT_EQ(ParseFloat("1e-999"), 0.0);
  EXPECT_TRUE(std::isnan(ParseFloat("NaN").value_or(0)));
}

TEST(TemplateNumbersTest, Literals) {
  struct {
    const char* text;
    bool may_be_float;
    size_t length;
    bool is_float;
    int64_t integer;
    double real;
  } cases[] = {
      {"12abc", true, 2, false, 12, 0},     {"1_000", true, 5, false, 1000, 0},
      {"1__0", true, 1, false, 1, 0},       {"007", true, 2, false, 0, 0},
      {"0x1fg", true, 4, false, 31, 0},     {"0b12", true, 3, false, 1, 0},
      {"0o8", true, 1, false, 0, 0},        {"1.5", true, 3, true, 0, 1.5},
      {"1.5", false, 1, false, 1, 0},       {"1.e5", true, 1, false, 1, 0},
      {"1e5x", true, 3, true, 0, 1e5},      {"1e+", true, 1, false, 1, 0},
      {"1.5e-3", true, 6, true, 0, 0.0015}, {"1.2.3", true, 3, true, 0, 1.2},
  };
  for (const auto& c : cases) {
    const NumberLiteral number = ReadNumberLiteral(c.text, c.may_be_float);
    EXPECT_EQ(number.length, c.length) << c.text;
    EXPECT_EQ(number.is_float, c.is_float) << c.text;
    EXPECT_EQ(number.integer, c.integer) << c.text;
    EXPECT_EQ(number.real, c.real) << c.text;
  }
  EXPECT_TRUE(ReadNumberLiteral("9223372036854775808", true).out_of_range);
}

TEST(TemplateNumbersTest, RoundTo) {
  EXPECT_EQ(RoundTo(2.5, 0), 2.0);
  EXPECT_EQ(RoundTo(3.5, 0), 4.0);
  EXPECT_EQ(RoundTo(2.675, 2), 2.67);
  EXPECT_EQ(RoundTo(1250.0, -2), 1200.0);
  EXPECT_EQ(RoundTo(1350.0, -2), 1400.0);
  EXPECT_EQ(RoundTo(4.0, -1), 0.0);
  EXPECT_EQ(RoundTo(5.0, -1), 0.0);
  EXPECT_EQ(RoundTo(5.1, -1), 10.0);
  EXPECT_EQ(RoundTo(9.9, -2), 0.0);
  EXPECT_EQ(RoundTo(1e300, 400), 1e300);
  EXPECT_EQ(RoundTo(1e300, -400), 0.0);
  EXPECT_EQ(RoundTo(int64_t{25}, -1), 20);
  EXPECT_EQ(RoundTo(int64_t{35}, -1), 40);
  EXPECT_EQ(RoundTo(int64_t{-25}, -1), -20);
  EXPECT_EQ(RoundTo(int64_t{-36}, -1), -40);
  EXPECT_EQ(RoundTo(INT64_MAX, -19), std::nullopt);
  EXPECT_EQ(RoundTo(int64_t{4'999'999'999'999'999'999}, -19), 0);
  EXPECT_EQ(RoundTo(INT64_MIN, -1), std::nullopt);
  EXPECT_EQ(RoundTo(INT64_MIN, -30), 0);
}

}  // namespace
}  // namespace flotilla::jinja
