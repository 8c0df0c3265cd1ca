// Numbers as Python reads, rounds and writes them. Integers have 64 bits here.
//
// Threads: pure functions. Source: CPython's float_repr_style "short", int() and float().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::jinja {

// A number at the start of a text that begins with a digit.
struct NumberLiteral {
  bool is_float = false;
  bool out_of_range = false;  // an integer beyond 64 bits
  size_t length = 0;
  int64_t integer = 0;
  double real = 0;
};
// jinja2's lexical rules: 12, 1_000, 0x1F, 0b1, 0o7, 1.5, 2e10. A number behind a dot is an
// integer.
NumberLiteral ReadNumberLiteral(std::string_view text, bool may_be_float);

// int(text, base): white space around, a sign, single underscores between digits. base 0 or 2 … 36.
enum class IntParse : uint8_t { kOk, kInvalid, kOutOfRange };
IntParse ParseInt(std::string_view text, int base, int64_t* out);

// float(text); nothing if Python would raise ValueError.
std::optional<double> ParseFloat(std::string_view text);

// repr(value): the shortest digits that read back as the same number.
std::string FloatRepr(double value);

// round(value, digits): half to even, decided on the exact binary value.
double RoundTo(double value, int64_t digits);
// round(value, digits) of an integer, for digits < 0.
std::optional<int64_t> RoundTo(int64_t value, int64_t digits);

// How many digits `precision` may ask for before formatting gives up (str.format, %).
inline constexpr int kMaxPrecision = 1000;
// printf of one double with conversion 'e', 'f' or 'g' and flag "#" or "".
std::string FormatDouble(double value, char conversion, int precision, bool alternate);

}  // namespace flotilla::jinja
