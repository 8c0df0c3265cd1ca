#include "common/template/operators.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/template/format.h"
#include "common/template/to_text.h"

namespace flotilla::jinja {
namespace {

Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }

std::string_view Symbol(ExprKind op) {
  switch (op) {
    case ExprKind::kAdd:
      return "+";
    case ExprKind::kSub:
      return "-";
    case ExprKind::kMul:
      return "*";
    case ExprKind::kDiv:
      return "/";
    case ExprKind::kFloorDiv:
      return "//";
    case ExprKind::kMod:
      return "%";
    default:
      return "**";
  }
}

Status Unsupported(ExprKind op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return TypeError(value->undefined_message());
  }
  return TypeError(StrCat("unsupported operand type(s) for ", Symbol(op), ": '", a.TypeName(),
                          "' and '", b.TypeName(), "'"));
}

int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t FloorModulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double FloorModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// As CPython's _float_div_mod does it, roundings included.
double FloorDivide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double Divide(int64_t a, int64_t b) {
  constexpr int64_t kExact = int64_t{1} << 53;  // doubles hold all integers up to here
  if (a >= -kExact && a <= kExact && b >= -kExact && b <= kExact) {
    return static_cast<double>(a) / static_cast<double>(b);
  }
  return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
}

StatusOr<Value> PowFloats(double a, double b) {
  if (a == 0 && b < 0) {
    return absl::InvalidArgumentError("0.0 cannot be raised to a negative power");
  }
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    return NotSupported("complex numbers");
  }
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    return absl::InvalidArgumentError("the result of ** is too large");
  }
  return Value::Float(power);
}

StatusOr<Value> PowIntegers(int64_t base, int64_t exponent) {
  if (exponent < 0) return PowFloats(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  for (bool fits = true; exponent > 0; exponent >>= 1) {
    if (!fits) return IntegerOverflow();  // the square is needed, but was too large
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return IntegerOverflow();
    }
    fits = !__builtin_mul_overflow(base, base, &base);
  }
  return Value::Int(result);
}

StatusOr<Value> IntegerArithmetic(ExprKind op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case ExprKind::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return IntegerOverflow();
      return Value::Int(result);
    case ExprKind::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return IntegerOverflow();
      return Value::Int(result);
    case ExprKind::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return IntegerOverflow();
      return Value::Int(result);
    case ExprKind::kPow:
      return PowIntegers(a, b);
    default:
      break;
  }
  if (b == 0) return DivisionByZero();
  if (op == ExprKind::kDiv) return Value::Float(Divide(a, b));
  if (b == -1) {  // INT64_MIN / -1 would trap
    if (op == ExprKind::kMod) return Value::Int(0);
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) return IntegerOverflow();
    return Value::Int(result);
  }
  return Value::Int(op == ExprKind::kMod ? FloorModulo(a, b) : FloorDivide(a, b));
}

StatusOr<Value> FloatArithmetic(ExprKind op, double a, double b) {
  switch (op) {
    case ExprKind::kAdd:
      return Value::Float(a + b);
    case ExprKind::kSub:
      return Value::Float(a - b);
    case ExprKind::kMul:
      return Value::Float(a * b);
    case ExprKind::kPow:
      return PowFloats(a, b);
    default:
      break;
  }
  if (b == 0) return DivisionByZero();
  if (op == ExprKind::kDiv) return Value::Float(a / b);
  return Value::Float(op == ExprKind::kMod ? FloorModulo(a, b) : FloorDivide(a, b));
}

StatusOr<Value> AddTexts(Runtime& rt, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  Value left = a;
  Value right = b;
  if (markup) {
    ASSIGN_OR_RETURN(left, EscapeHtml(rt, a));
    ASSIGN_OR_RETURN(right, EscapeHtml(rt, b));
  }
  RETURN_IF_ERROR(rt.StepBytes(left.text().size() + right.text().size()));
  std::string text;
  text.reserve(left.text().size() + right.text().size());
  text.append(left.text()).append(right.text());
  return rt.NewStr(std::move(text), markup);
}

StatusOr<Value> AddSequences(Runtime& rt, const Value& a, const Value& b) {
  const size_t size = a.items().size() + b.items().size();
  RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(size)));
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? rt.NewList(std::move(items)) : rt.NewTuple(std::move(items));
}

StatusOr<Value> Repeat(Runtime& rt, const Value& value, int64_t times) {
  const size_t count = times < 0 ? 0 : static_cast<size_t>(times);
  const size_t unit = value.is_str() ? value.text().size() : value.items().size() * sizeof(Value);
  size_t bytes = 0;
  if (__builtin_mul_overflow(unit, count, &bytes)) bytes = SIZE_MAX / 2;
  RETURN_IF_ERROR(rt.CheckRoom(bytes));
  RETURN_IF_ERROR(rt.StepBytes(bytes));
  if (value.is_str()) {
    std::string text;
    if (unit != 0) {
      text.reserve(bytes);
      for (size_t i = 0; i < count; ++i) text.append(value.text());
    }
    return rt.NewStr(std::move(text), value.is_markup());
  }
  std::vector<Value> items;
  if (unit != 0) {
    items.reserve(value.items().size() * count);
    for (size_t i = 0; i < count; ++i) {
      items.insert(items.end(), value.items().begin(), value.items().end());
    }
  }
  return value.is(Kind::kList) ? rt.NewList(std::move(items)) : rt.NewTuple(std::move(items));
}

bool IsRepeatable(const Value& value) { return value.is_str() || value.is_sequence(); }

}  // namespace

Status IntegerOverflow() { return NotSupported("an integer beyond 64 bits"); }

StatusOr<Value> Arithmetic(Runtime& rt, ExprKind op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return IntegerArithmetic(op, a.int_value(), b.int_value());
  }
  if (a.is_number() && b.is_number()) return FloatArithmetic(op, a.as_double(), b.as_double());
  if (op == ExprKind::kAdd) {
    if (a.is_str() && b.is_str()) return AddTexts(rt, a, b);
    if (a.is_sequence() && a.kind() == b.kind()) return AddSequences(rt, a, b);
  } else if (op == ExprKind::kMul) {
    if (IsRepeatable(a) && b.is_integral()) return Repeat(rt, a, b.int_value());
    if (IsRepeatable(b) && a.is_integral()) return Repeat(rt, b, a.int_value());
  } else if (op == ExprKind::kMod && a.is_str()) {
    return PercentFormat(rt, a, b);
  }
  return Unsupported(op, a, b);
}

StatusOr<Value> Negate(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::Float(-value.float_value());
  if (!value.is_integral()) {
    return TypeError(value.is_undefined()
                         ? value.undefined_message()
                         : StrCat("bad operand type for unary -: '", value.TypeName(), "'"));
  }
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, value.int_value(), &result)) return IntegerOverflow();
  return Value::Int(result);
}

StatusOr<Value> Plus(const Value& value) {
  if (value.is(Kind::kFloat)) return value;
  if (value.is_integral()) return Value::Int(value.int_value());
  return TypeError(value.is_undefined()
                       ? value.undefined_message()
                       : StrCat("bad operand type for unary +: '", value.TypeName(), "'"));
}

StatusOr<Value> Concat(Runtime& rt, const std::vector<Value>& parts) {
  std::string text;
  for (const Value& part : parts) RETURN_IF_ERROR(AppendStr(rt, part, &text));
  return rt.NewStr(std::move(text));
}

namespace {

// What stands for `c` in HTML; empty: itself.
std::string_view HtmlEscape(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '\'':
      return "&#39;";
    case '"':
      return "&#34;";
    default:
      return {};
  }
}

}  // namespace

StatusOr<Value> EscapeHtml(Runtime& rt, const Value& value) {
  if (value.is_markup()) return value;
  ASSIGN_OR_RETURN(const Value plain, SoftStr(rt, value));
  RETURN_IF_ERROR(rt.StepBytes(plain.text().size()));
  size_t size = 0;
  for (char c : plain.text()) size += std::max<size_t>(HtmlEscape(c).size(), 1);
  RETURN_IF_ERROR(rt.CheckRoom(size));
  std::string out;
  out.reserve(size);
  for (char c : plain.text()) {
    const std::string_view escape = HtmlEscape(c);
    out += escape.empty() ? std::string_view(&c, 1) : escape;
  }
  return rt.NewStr(std::move(out), /*markup=*/true);
}

}  // namespace flotilla::jinja
