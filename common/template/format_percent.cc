// format % args.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "common/base/utf8.h"
#include "common/template/compare.h"
#include "common/template/format.h"
#include "common/template/operators.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, std::string_view format, const Value& args)
      : rt_(rt), rest_(format), args_(args) {}

  StatusOr<std::string> Format() {
    std::string out;
    while (!rest_.empty()) {
      const size_t percent = std::min(rest_.find('%'), rest_.size());
      RETURN_IF_ERROR(rt_.Append(rest_.substr(0, percent), &out));
      rest_.remove_prefix(percent);
      if (rest_.empty()) break;
      rest_.remove_prefix(1);
      ASSIGN_OR_RETURN(const std::string field, Field());
      RETURN_IF_ERROR(rt_.Append(field, &out));
    }
    const bool has_keys =
        args_.is_dict() || args_.is(Kind::kList) || args_.is(Kind::kRange) || args_.is_undefined();
    if (!has_keys && used_ < NumArgs()) {
      return TypeError("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  size_t NumArgs() const { return args_.is(Kind::kTuple) ? args_.items().size() : 1; }

  StatusOr<Value> NextArg() {
    if (used_ == NumArgs()) return TypeError("not enough arguments for format string");
    const size_t index = used_++;
    return args_.is(Kind::kTuple) ? args_.items()[index] : args_;
  }

  StatusOr<char> TakeChar() {
    if (rest_.empty()) return TypeError("incomplete format");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  // "(key)", if it is there: what the field is about.
  StatusOr<Value> TakeKey() {
    if (rest_.empty() || rest_.front() != '(') return Value();
    int open = 1;
    size_t end = 1;
    for (; end < rest_.size() && open > 0; ++end) {
      open += rest_[end] == '(' ? 1 : rest_[end] == ')' ? -1 : 0;
    }
    if (open > 0) return TypeError("incomplete format key");
    if (!args_.is_dict()) return TypeError("format requires a mapping");
    const Value* found = args_.dict().Find(rest_.substr(1, end - 2));
    if (found == nullptr) return TypeError("the mapping lacks a format key");
    rest_.remove_prefix(end);
    return *found;
  }

  // Digits, or "*" for an argument that has the number. -1: neither.
  StatusOr<int64_t> TakeNumber() {
    if (!rest_.empty() && rest_.front() == '*') {
      rest_.remove_prefix(1);
      ASSIGN_OR_RETURN(const Value arg, NextArg());
      if (!arg.is_integral()) return TypeError("* wants int");
      if (arg.int_value() > INT32_MAX || arg.int_value() < -INT32_MAX) {
        return TypeError("width too big");
      }
      return arg.int_value();
    }
    int64_t value = -1;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      value = std::max<int64_t>(value, 0) * 10 + (rest_.front() - '0');
      if (value > INT32_MAX) return TypeError("width too big");
      rest_.remove_prefix(1);
    }
    return value;
  }

  Status TakeFlags(Layout* layout) {
    bool zero = false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '-') {
        layout->align = '<';
      } else if (c == '+') {
        layout->sign = '+';
      } else if (c == ' ') {
        layout->sign = layout->sign == '+' ? '+' : ' ';
      } else if (c == '#') {
        layout->alternate = true;
      } else if (c == '0') {
        zero = true;
      } else {
        break;
      }
      rest_.remove_prefix(1);
    }
    if (zero && layout->align == 0) layout->align = '=';
    ASSIGN_OR_RETURN(const int64_t width, TakeNumber());
    if (width < -1) layout->align = '<';  // a negative one from an argument
    layout->width = width == -1 ? 0 : std::abs(width);
    if (rest_.empty() || rest_.front() != '.') return OkStatus();
    rest_.remove_prefix(1);
    ASSIGN_OR_RETURN(const int64_t precision, TakeNumber());
    layout->precision = std::max<int64_t>(precision, 0);
    return OkStatus();
  }

  StatusOr<std::string> Field() {
    Layout layout;
    ASSIGN_OR_RETURN(Value arg, TakeKey());
    RETURN_IF_ERROR(TakeFlags(&layout));
    ASSIGN_OR_RETURN(char type, TakeChar());
    if (type == 'h' || type == 'l' || type == 'L') {
      ASSIGN_OR_RETURN(type, TakeChar());
    }
    if (type == '%') return std::string("%");
    if (arg.is_missing()) {
      ASSIGN_OR_RETURN(arg, NextArg());
    }
    if (layout.align == '=' && std::string_view("srac").find(type) != std::string_view::npos) {
      layout.align = '>';
    }
    switch (type) {
      case 's':
      case 'r':
        return TextField(arg, type, layout);
      case 'c':
        return CharField(arg, layout);
      case 'd':
      case 'i':
      case 'u':
        return IntegerField(arg, 'd', layout);
      case 'o':
      case 'x':
      case 'X':
        return IntegerField(arg, type, layout);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return FloatField(arg, type, layout);
      default:
        return TypeError("unsupported format character");
    }
  }

  StatusOr<std::string> TextField(const Value& arg, char type, const Layout& layout) {
    std::string text;
    RETURN_IF_ERROR(type == 's' ? AppendStr(rt_, arg, &text) : AppendRepr(rt_, arg, &text));
    if (layout.precision >= 0) {
      text.resize(ByteOfChar(text, static_cast<size_t>(layout.precision)));
    }
    return Pad(rt_, text, 0, '>', layout);
  }

  StatusOr<std::string> CharField(const Value& arg, const Layout& layout) {
    std::string text;
    if (arg.is_str() && arg.str().num_chars == 1) {
      text = std::string(arg.text());
    } else if (arg.is_integral()) {
      const int64_t code = arg.int_value();
      if (code < 0 || code > 0x10ffff) return TypeError("%c arg not in range(0x110000)");
      if (code >= 0xd800 && code < 0xe000) return NotSupported("a lone surrogate");
      AppendUtf8(static_cast<char32_t>(code), &text);
    } else {
      return TypeError("%c requires int or char");
    }
    return Pad(rt_, text, 0, '>', layout);
  }

  StatusOr<std::string> IntegerField(const Value& arg, char type, Layout layout) {
    int64_t value = 0;
    if (arg.is_integral()) {
      value = arg.int_value();
    } else if (arg.is(Kind::kFloat) && type == 'd') {
      const double real = std::trunc(arg.float_value());
      if (!(std::fabs(real) < 9.2e18)) return IntegerOverflow();
      value = static_cast<int64_t>(real);
    } else {
      return TypeError(
          StrCat("%", std::string(1, type), " format: a number is required, not ", arg.TypeName()));
    }
    if (layout.align == '=') layout.fill.assign(1, '0');
    if (layout.precision < 0) return FormatInteger(rt_, value, type, layout);
    // At least so many digits: the number without width is padded with zeros first.
    Layout digits = layout;
    digits.width = 0;
    digits.alternate = false;
    ASSIGN_OR_RETURN(const std::string text, FormatInteger(rt_, value, type, digits));
    const size_t head = text[0] == '-' || text[0] == '+' || text[0] == ' ' ? 1 : 0;
    digits.fill.assign(1, '0');
    digits.align = '=';
    digits.width = layout.precision + static_cast<int64_t>(head);
    ASSIGN_OR_RETURN(const std::string padded, Pad(rt_, text, head, '=', digits));
    const std::string prefix = layout.alternate && type != 'd' ? std::string{'0', type} : "";
    const std::string_view sign = std::string_view(padded).substr(0, head);
    const std::string whole = StrCat(sign, prefix, std::string_view(padded).substr(head));
    return Pad(rt_, whole, head + prefix.size(), '>', layout);
  }

  StatusOr<std::string> FloatField(const Value& arg, char type, Layout layout) {
    if (!arg.is_number()) {
      return TypeError(arg.is_undefined() ? arg.undefined_message()
                                          : StrCat("must be real number, not ", arg.TypeName()));
    }
    if (layout.align == '=') layout.fill.assign(1, '0');
    return FormatFloat(rt_, arg.as_double(), type, layout);
  }

  Runtime& rt_;
  std::string_view rest_;
  const Value& args_;
  size_t used_ = 0;
};

}  // namespace

StatusOr<Value> PercentFormat(Runtime& rt, const Value& format, const Value& args) {
  if (format.is_markup()) return NotSupported("% on Markup");
  RETURN_IF_ERROR(rt.StepBytes(8 * format.text().size()));
  ASSIGN_OR_RETURN(std::string text, PercentFormatter(rt, format.text(), args).Format());
  return rt.NewStr(std::move(text));
}

}  // namespace flotilla::jinja
