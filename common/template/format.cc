// The layout of numbers and strings, and the format specifications of str.format.
#include "common/template/format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/template/numbers.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

std::string DigitsOf(uint64_t value, char type) {
  const uint64_t base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'd' ? 10 : 16;
  const char* digits = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.push_back(digits[value % base]);
    value /= base;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string Grouped(std::string_view digits, char separator, size_t group) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string SignOf(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// Reads digits at the start of *spec; -1 if there are none.
StatusOr<int64_t> TakeDigits(std::string_view* spec) {
  int64_t value = -1;
  while (!spec->empty() && spec->front() >= '0' && spec->front() <= '9') {
    value = std::max<int64_t>(value, 0) * 10 + (spec->front() - '0');
    if (value > INT32_MAX) return TypeError("too many decimal digits in format string");
    spec->remove_prefix(1);
  }
  return value;
}

bool TakeChar(std::string_view* spec, char c) {
  if (spec->empty() || spec->front() != c) return false;
  spec->remove_prefix(1);
  return true;
}

// Whether there was a fill.
bool TakeFillAndAlign(std::string_view* spec, Layout* layout) {
  size_t after_first = 0;
  if (!spec->empty()) NextChar(*spec, &after_first);
  if (after_first > 0 && after_first < spec->size() && IsAlign((*spec)[after_first])) {
    layout->fill = std::string(spec->substr(0, after_first));
    layout->align = (*spec)[after_first];
    spec->remove_prefix(after_first + 1);
    return true;
  }
  if (!spec->empty() && IsAlign(spec->front())) {
    layout->align = spec->front();
    spec->remove_prefix(1);
  }
  return false;
}

// [[fill]align][sign][#][0][width][,][.precision][type]; returns the type, 0 if there is none.
StatusOr<char> ParseSpec(std::string_view spec, Layout* layout) {
  const bool filled = TakeFillAndAlign(&spec, layout);
  if (!spec.empty() && (spec[0] == '+' || spec[0] == '-' || spec[0] == ' ')) {
    layout->sign = spec[0];
    spec.remove_prefix(1);
  }
  layout->alternate = TakeChar(&spec, '#');
  // Behind an alignment it is the fill, unless one was given.
  if (!filled && TakeChar(&spec, '0')) {
    layout->fill.assign(1, '0');
    if (layout->align == 0) layout->align = '=';
  }
  ASSIGN_OR_RETURN(const int64_t width, TakeDigits(&spec));
  layout->width = std::max<int64_t>(width, 0);
  if (!spec.empty() && (spec[0] == ',' || spec[0] == '_')) {
    layout->grouping = spec[0];
    spec.remove_prefix(1);
  }
  if (TakeChar(&spec, '.')) {
    ASSIGN_OR_RETURN(layout->precision, TakeDigits(&spec));
    if (layout->precision < 0) return TypeError("Format specifier missing precision");
  }
  if (spec.size() > 1) return TypeError("Invalid format specifier");
  return spec.empty() ? '\0' : spec[0];
}

Status UnknownCode(char type, const Value& value) {
  return TypeError(StrCat("Unknown format code '", std::string(1, type), "' for object of type '",
                          value.TypeName(), "'"));
}

StatusOr<std::string> FormatTextField(Runtime& rt, const Value& value, char type,
                                      const Layout& layout) {
  if (type != 0 && type != 's') return UnknownCode(type, value);
  if (layout.sign != '-' || layout.alternate || layout.grouping != 0 || layout.align == '=') {
    return NotSupported("this format specification for a str");
  }
  return FormatText(rt, value.text(), layout);
}

StatusOr<std::string> FormatNumberField(Runtime& rt, const Value& value, char type,
                                        const Layout& layout) {
  constexpr std::string_view kIntegerTypes = "dboxX";
  constexpr std::string_view kFloatTypes = "eEfFgG%";
  const bool is_float = value.is(Kind::kFloat);
  if (type != 0 && kFloatTypes.find(type) != std::string_view::npos) {
    return FormatFloat(rt, value.as_double(), type, layout);
  }
  if (is_float && type == 0 && layout.precision < 0 && layout.grouping == 0) {
    const double number = value.float_value();
    const std::string sign = SignOf(std::signbit(number), layout.sign);
    return Pad(rt, sign + FloatRepr(std::fabs(number)), sign.size(), '>', layout);
  }
  if (is_float && type == 0) return NotSupported("a format specification of a float without type");
  if (is_float || (type != 0 && kIntegerTypes.find(type) == std::string_view::npos)) {
    return UnknownCode(type, value);
  }
  if (layout.precision >= 0) {
    return TypeError("Precision not allowed in integer format specifier");
  }
  if (layout.grouping == ',' && type != 0 && type != 'd') {
    return TypeError("Cannot specify ',' with this type");
  }
  return FormatInteger(rt, value.int_value(), type == 0 ? 'd' : type, layout);
}

}  // namespace

StatusOr<std::string> Pad(Runtime& rt, std::string_view text, size_t head, char default_align,
                          const Layout& layout) {
  if (layout.width <= 0) return std::string(text);
  const int64_t missing = layout.width - static_cast<int64_t>(CountChars(text));
  if (missing <= 0) return std::string(text);
  const size_t count = static_cast<size_t>(missing);
  RETURN_IF_ERROR(rt.CheckRoom(count * layout.fill.size()));
  RETURN_IF_ERROR(rt.StepBytes(count * layout.fill.size()));
  const char align = layout.align == 0 ? default_align : layout.align;
  const size_t left = align == '<' ? 0 : align == '^' ? count / 2 : count;
  std::string out;
  if (align == '=') out.append(text.substr(0, head));
  for (size_t i = 0; i < left; ++i) out.append(layout.fill);
  out.append(text.substr(align == '=' ? head : 0));
  for (size_t i = left; i < count; ++i) out.append(layout.fill);
  return out;
}

StatusOr<std::string> FormatInteger(Runtime& rt, int64_t value, char type, const Layout& layout) {
  const uint64_t size =
      value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  std::string digits = DigitsOf(size, type);
  if (layout.grouping != 0) {
    if (layout.fill == "0" && layout.align == '=' && layout.width > 0) {
      return NotSupported("zeros between grouped digits");
    }
    digits = Grouped(digits, layout.grouping, type == 'd' ? 3 : 4);
  }
  std::string head = SignOf(value < 0, layout.sign);
  if (layout.alternate && type != 'd') head += {'0', type};
  return Pad(rt, head + digits, head.size(), '>', layout);
}

StatusOr<std::string> FormatFloat(Runtime& rt, double value, char type, const Layout& layout) {
  if (layout.precision > kMaxPrecision) return NotSupported("so many digits");
  if (layout.grouping != 0 && layout.fill == "0" && layout.align == '=' && layout.width > 0) {
    return NotSupported("zeros between grouped digits");
  }
  const bool percent = type == '%';
  const bool upper = type == 'E' || type == 'F' || type == 'G';
  const double size = std::fabs(percent ? value * 100 : value);
  std::string text;
  if (std::isfinite(size)) {
    text = FormatDouble(size, percent ? 'f' : static_cast<char>(type | 0x20),
                        layout.precision < 0 ? 6 : static_cast<int>(layout.precision),
                        layout.alternate);
  } else {
    text = std::isnan(size) ? "nan" : "inf";
  }
  if (layout.grouping != 0) {
    const size_t whole = std::min(text.find_first_not_of("0123456789"), text.size());
    text =
        Grouped(std::string_view(text).substr(0, whole), layout.grouping, 3) + text.substr(whole);
  }
  if (upper) text = Upper(text);
  const std::string sign = SignOf(std::signbit(value) && !std::isnan(value), layout.sign);
  return Pad(rt, StrCat(sign, text, percent ? "%" : ""), sign.size(), '>', layout);
}

StatusOr<std::string> FormatText(Runtime& rt, std::string_view text, const Layout& layout) {
  if (layout.precision >= 0) {
    text = text.substr(0, ByteOfChar(text, static_cast<size_t>(layout.precision)));
  }
  return Pad(rt, text, 0, '<', layout);
}

StatusOr<std::string> FormatField(Runtime& rt, const Value& value, std::string_view spec) {
  if (spec.empty()) return ToText(rt, value);
  Layout layout;
  ASSIGN_OR_RETURN(const char type, ParseSpec(spec, &layout));
  if (value.is_str()) return FormatTextField(rt, value, type, layout);
  if (value.is_number()) return FormatNumberField(rt, value, type, layout);
  return TypeError(StrCat("unsupported format string passed to ", value.TypeName()));
}

}  // namespace flotilla::jinja
