#include "common/template/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

int DigitValue(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 36;
}

// The end of digits of `base` with single underscores between them, starting at pos.
size_t DigitsEnd(std::string_view text, size_t pos, int base) {
  const auto digit_at = [&](size_t i) { return i < text.size() && DigitValue(text[i]) < base; };
  while (digit_at(pos) || (pos < text.size() && text[pos] == '_' && digit_at(pos + 1))) ++pos;
  return pos;
}

std::string WithoutUnderscores(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c != '_') out.push_back(c);
  }
  return out;
}

double ToDouble(const std::string& decimal) { return std::strtod(decimal.c_str(), nullptr); }

// The end of ".5", "e-3" or both at pos, behind the digits of a literal; pos if there are neither.
size_t FractionEnd(std::string_view text, size_t pos) {
  const auto digit_at = [&](size_t i) { return i < text.size() && absl::ascii_isdigit(text[i]); };
  if (pos < text.size() && text[pos] == '.' && digit_at(pos + 1)) {
    pos = DigitsEnd(text, pos + 1, 10);
  }
  if (pos < text.size() && (text[pos] == 'e' || text[pos] == 'E')) {
    size_t exponent = pos + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (digit_at(exponent)) pos = DigitsEnd(text, exponent, 10);
  }
  return pos;
}

// The base that "0x" and the like announce, if a digit follows.
int PrefixedBase(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return 0;
  const char letter = static_cast<char>(text[1] | 0x20);
  const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  return base != 0 && DigitsEnd(text, 2, base) > 2 ? base : 0;
}

size_t IntegerEnd(std::string_view text) {
  const int base = PrefixedBase(text);
  if (base != 0) return DigitsEnd(text, 2, base);
  return DigitsEnd(text, 0, text[0] == '0' ? 1 : 10);  // a leading zero stands only before zeros
}

// Digits only, most significant first.
IntParse ReadDigits(std::string_view digits, int base, bool negative, int64_t* out) {
  uint64_t value = 0;
  for (char c : digits) {
    if (c == '_') continue;
    if (__builtin_mul_overflow(value, static_cast<uint64_t>(base), &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(DigitValue(c)), &value)) {
      return IntParse::kOutOfRange;
    }
  }
  const uint64_t most = static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0);
  if (value > most) return IntParse::kOutOfRange;
  *out = static_cast<int64_t>(negative ? ~value + 1 : value);
  return IntParse::kOk;
}

bool EqualsIgnoringCase(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (static_cast<char>(text[i] | 0x20) != lower[i]) return false;
  }
  return true;
}

// [digits][.[digits]][e[sign]digits] with at least one digit before the exponent.
bool IsDecimal(std::string_view text) {
  const size_t whole = DigitsEnd(text, 0, 10);
  if (whole > 0 && text[0] == '_') return false;
  size_t pos = whole;
  size_t fraction = 0;
  if (pos < text.size() && text[pos] == '.') {
    if (++pos < text.size() && text[pos] == '_') return false;
    const size_t end = DigitsEnd(text, pos, 10);
    fraction = end - pos;
    pos = end;
  }
  if (whole == 0 && fraction == 0) return false;
  if (pos == text.size()) return true;
  if ((text[pos] | 0x20) != 'e') return false;
  if (++pos < text.size() && (text[pos] == '+' || text[pos] == '-')) ++pos;
  if (pos == text.size() || !absl::ascii_isdigit(text[pos])) return false;
  return DigitsEnd(text, pos, 10) == text.size();
}

}  // namespace

NumberLiteral ReadNumberLiteral(std::string_view text, bool may_be_float) {
  NumberLiteral number;
  const size_t whole = DigitsEnd(text, 0, 10);
  const size_t end = may_be_float ? FractionEnd(text, whole) : whole;
  if (end != whole) {
    number.is_float = true;
    number.length = end;
    number.real = ToDouble(WithoutUnderscores(text.substr(0, end)));
    return number;
  }
  number.length = IntegerEnd(text);
  const int base = PrefixedBase(text);
  const size_t digits = base == 0 ? 0 : 2;
  number.out_of_range =
      ReadDigits(text.substr(digits, number.length - digits), base == 0 ? 10 : base,
                 /*negative=*/false, &number.integer) == IntParse::kOutOfRange;
  return number;
}

IntParse ParseInt(std::string_view text, int base, int64_t* out) {
  text = StripSpace(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const int prefixed = PrefixedBase(text);
  if (prefixed != 0 && (base == 0 || base == prefixed)) {
    return DigitsEnd(text, 2, prefixed) == text.size()
               ? ReadDigits(text.substr(2), prefixed, negative, out)
               : IntParse::kInvalid;
  }
  if (base == 0) {
    base = 10;
    if (!text.empty() && text[0] == '0' && DigitsEnd(text, 0, 1) != text.size()) {
      return IntParse::kInvalid;
    }
  }
  if (text.empty() || text[0] == '_' || DigitsEnd(text, 0, base) != text.size()) {
    return IntParse::kInvalid;
  }
  return ReadDigits(text, base, negative, out);
}

std::optional<double> ParseFloat(std::string_view text) {
  text = StripSpace(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  double value = 0;
  if (EqualsIgnoringCase(text, "inf") || EqualsIgnoringCase(text, "infinity")) {
    value = INFINITY;
  } else if (EqualsIgnoringCase(text, "nan")) {
    value = NAN;
  } else if (IsDecimal(text)) {
    value = ToDouble(WithoutUnderscores(text));
  } else {
    return std::nullopt;
  }
  return negative ? -value : value;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Digits and exponent, then Python's rule for which form they take.
  char buffer[40];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (absl::ascii_isdigit(c)) digits.push_back(c);
  }
  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(1, '.').append(digits, 1);
    std::snprintf(buffer, sizeof(buffer), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + buffer;
  }
  if (exponent < 0)
    return out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string FormatDouble(double value, char conversion, int precision, bool alternate) {
  const std::string spec = std::string(alternate ? "%#.*" : "%.*") + conversion;
  const char* format = spec.c_str();
  const int size = std::snprintf(nullptr, 0, format, precision, value);
  std::string out(static_cast<size_t>(size), '\0');
  std::snprintf(out.data(), out.size() + 1, format, precision, value);
  return out;
}

double RoundTo(double value, int64_t digits) {
  if (!std::isfinite(value) || value == 0 || digits > 330) return value;
  if (digits >= 0) return ToDouble(FormatDouble(value, 'f', static_cast<int>(digits), false));
  if (digits < -310) return std::copysign(0.0, value);
  // Rounded at a digit left of the point: so many significant digits are left of it.
  const std::string exact = FormatDouble(std::fabs(value), 'f', 0, false);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  if (static_cast<int64_t>(exact.size()) + digits < 0) return std::copysign(0.0, value);
  if (static_cast<int64_t>(exact.size()) + digits == 0) {
    const double half = unit / 2;
    return std::copysign(std::fabs(value) > half ? unit : 0.0, value);
  }
  const int significant = static_cast<int>(static_cast<int64_t>(exact.size()) + digits);
  return ToDouble(FormatDouble(value, 'e', significant - 1, false));
}

std::optional<int64_t> RoundTo(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) {
    // Half of 10^19 is within 64 bits; beyond that everything rounds to 0.
    const uint64_t size =
        value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
    if (digits == -19 && size > 5'000'000'000'000'000'000u) return std::nullopt;
    return 0;
  }
  int64_t unit = 1;
  for (int64_t i = digits; i < 0; ++i) unit *= 10;
  int64_t rest = value % unit;
  int64_t down = value - rest;
  if (rest < 0) {
    rest += unit;
    if (__builtin_sub_overflow(down, unit, &down)) return std::nullopt;
  }
  const bool odd = (down / unit) % 2 != 0;
  if (rest < unit - rest || (rest == unit - rest && !odd)) return down;
  int64_t up = 0;
  if (__builtin_add_overflow(down, unit, &up)) return std::nullopt;
  return up;
}

}  // namespace flotilla::jinja
