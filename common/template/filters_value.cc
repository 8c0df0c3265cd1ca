// Filters of single values: defaults and numbers.
#include <cmath>
#include <optional>

#include "common/template/builtin.h"
#include "common/template/numbers.h"
#include "common/template/operators.h"

namespace flotilla::jinja {
namespace {

StatusOr<Value> Default(const Call& call) {
  const bool boolean = call.given(1) && call.arg(1).Truthy();
  if (!call.self.is_undefined() && !(boolean && !call.self.Truthy())) return call.self;
  if (call.given(0)) return call.arg(0);
  return call.rt.NewStr("");
}

StatusOr<Value> Abs(const Call& call) {
  const Value& value = call.self;
  if (value.is(Kind::kFloat)) return Value::Float(std::fabs(value.float_value()));
  if (!value.is_integral()) {
    return TypeError(StrCat("bad operand type for abs(): '", value.TypeName(), "'"));
  }
  return value.int_value() < 0 ? Negate(value) : Plus(value);
}

// int(value) of a finite float.
StatusOr<Value> Truncate(double value) {
  if (!(std::fabs(value) < 9223372036854775808.0)) return IntegerOverflow();
  return Value::Int(static_cast<int64_t>(value));
}

StatusOr<Value> TextToInt(const Call& call, const Value& fallback) {
  ASSIGN_OR_RETURN(const int64_t base, IntArg(call, 1, 10));
  int64_t integer = 0;
  if (base == 0 || (base >= 2 && base <= 36)) {
    const IntParse parsed = ParseInt(call.self.text(), static_cast<int>(base), &integer);
    if (parsed == IntParse::kOk) return Value::Int(integer);
    if (parsed == IntParse::kOutOfRange) return IntegerOverflow();
  }
  const std::optional<double> real = ParseFloat(call.self.text());
  if (!real.has_value() || !std::isfinite(*real)) return fallback;
  return Truncate(*real);
}

StatusOr<Value> IntFilter(const Call& call) {
  const Value fallback = call.given(0) ? call.arg(0) : Value::Int(0);
  const Value& value = call.self;
  if (value.is_integral()) return Value::Int(value.int_value());
  if (value.is(Kind::kWideInt)) return value;
  if (value.is_undefined()) return TypeError(value.undefined_message());
  if (value.is_str()) return TextToInt(call, fallback);
  if (!value.is(Kind::kFloat)) return fallback;
  if (std::isinf(value.float_value())) {
    return TypeError("cannot convert float infinity to integer");
  }
  if (std::isnan(value.float_value())) return fallback;
  return Truncate(value.float_value());
}

StatusOr<Value> FloatFilter(const Call& call) {
  const Value fallback = call.given(0) ? call.arg(0) : Value::Float(0);
  const Value& value = call.self;
  if (value.is_number()) return Value::Float(value.as_double());
  if (value.is(Kind::kWideInt)) return Value::Float(static_cast<double>(value.wide_value()));
  if (value.is_undefined()) return TypeError(value.undefined_message());
  if (!value.is_str()) return fallback;
  const std::optional<double> real = ParseFloat(value.text());
  return real.has_value() ? Value::Float(*real) : fallback;
}

StatusOr<Value> RoundCommon(const Value& value, int64_t precision) {
  if (value.is(Kind::kFloat)) {
    const double rounded = RoundTo(value.float_value(), precision);
    if (std::isinf(rounded) && std::isfinite(value.float_value())) {
      return TypeError("rounded value too large to represent");
    }
    return Value::Float(rounded);
  }
  const std::optional<int64_t> rounded = RoundTo(value.int_value(), precision);
  if (!rounded.has_value()) return IntegerOverflow();
  return Value::Int(*rounded);
}

// math.ceil or math.floor of value * 10**precision, divided by it again.
StatusOr<Value> RoundWith(const Call& call, int64_t precision, bool up) {
  ASSIGN_OR_RETURN(const Value unit,
                   Arithmetic(call.rt, ExprKind::kPow, Value::Int(10), Value::Int(precision)));
  ASSIGN_OR_RETURN(Value scaled, Arithmetic(call.rt, ExprKind::kMul, call.self, unit));
  if (scaled.is(Kind::kFloat)) {
    const double real = scaled.float_value();
    if (!std::isfinite(real)) {
      return TypeError("cannot convert float infinity or NaN to integer");
    }
    ASSIGN_OR_RETURN(scaled, Truncate(up ? std::ceil(real) : std::floor(real)));
  }
  return Arithmetic(call.rt, ExprKind::kDiv, scaled, unit);
}

StatusOr<Value> Round(const Call& call) {
  std::string_view method = "common";
  if (call.given(1)) {
    method = call.arg(1).is_str() ? call.arg(1).text() : "";
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return TypeError("method must be common, ceil or floor");
  }
  ASSIGN_OR_RETURN(const int64_t precision, IntArg(call, 0, 0));
  if (!call.self.is_number()) {
    return TypeError(StrCat("type ", call.self.TypeName(), " doesn't define __round__ method"));
  }
  if (method == "common") return RoundCommon(call.self, precision);
  return RoundWith(call, precision, /*up=*/method == "ceil");
}

constexpr Builtin kValueFilters[] = {
    {"abs", Abs, ""},
    {"d", Default, "default_value boolean"},
    {"default", Default, "default_value boolean"},
    {"float", FloatFilter, "default"},
    {"int", IntFilter, "default base"},
    {"round", Round, "precision method"},
};

}  // namespace

std::span<const Builtin> ValueFilters() { return kValueFilters; }

}  // namespace flotilla::jinja
