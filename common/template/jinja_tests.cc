// What may follow `is`.
#include "common/template/builtin.h"
#include "common/template/compare.h"
#include "common/template/iterate.h"
#include "common/template/operators.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

template <Kind kKind>
StatusOr<Value> IsKind(const Call& call) {
  return Value::Bool(call.self.is(kKind));
}

StatusOr<Value> IsDefined(const Call& call) { return Value::Bool(!call.self.is_undefined()); }
StatusOr<Value> IsTrue(const Call& call) {
  return Value::Bool(call.self.is(Kind::kBool) && call.self.bool_value());
}
StatusOr<Value> IsFalse(const Call& call) {
  return Value::Bool(call.self.is(Kind::kBool) && !call.self.bool_value());
}
StatusOr<Value> IsNumber(const Call& call) { return Value::Bool(call.self.is_any_number()); }
StatusOr<Value> IsInteger(const Call& call) {
  return Value::Bool(call.self.is(Kind::kInt) || call.self.is(Kind::kWideInt));
}
StatusOr<Value> IsIterableTest(const Call& call) { return Value::Bool(IsIterable(call.self)); }

// Something with len() and []: an Undefined has both.
StatusOr<Value> IsSequence(const Call& call) {
  const Value& value = call.self;
  return Value::Bool(value.is_undefined() || value.is_str() || value.is_sequence() ||
                     value.is_dict() || value.is(Kind::kRange));
}

StatusOr<Value> IsCallable(const Call& call) {
  const Value& value = call.self;
  return Value::Bool(value.is(Kind::kFunction) || value.is(Kind::kMacro) || value.is(Kind::kLoop) ||
                     value.is_undefined());
}

StatusOr<Value> IsSameAs(const Call& call) { return Value::Bool(call.self.SameAs(call.arg(0))); }
StatusOr<Value> IsEscaped(const Call& call) { return Value::Bool(call.self.is_markup()); }

template <Comparison kComparison>
StatusOr<Value> Compares(const Call& call) {
  ASSIGN_OR_RETURN(const bool holds, Compare(call.rt, kComparison, call.self, call.arg(0)));
  return Value::Bool(holds);
}

StatusOr<bool> IsMultiple(const Call& call, const Value& of) {
  ASSIGN_OR_RETURN(const Value rest, Arithmetic(call.rt, ExprKind::kMod, call.self, of));
  return Equals(call.rt, rest, Value::Int(0));
}

StatusOr<Value> IsEven(const Call& call) {
  ASSIGN_OR_RETURN(const bool even, IsMultiple(call, Value::Int(2)));
  return Value::Bool(even);
}

StatusOr<Value> IsOdd(const Call& call) {
  ASSIGN_OR_RETURN(const Value rest, Arithmetic(call.rt, ExprKind::kMod, call.self, Value::Int(2)));
  ASSIGN_OR_RETURN(const bool odd, Equals(call.rt, rest, Value::Int(1)));
  return Value::Bool(odd);
}

StatusOr<Value> IsDivisibleBy(const Call& call) {
  ASSIGN_OR_RETURN(const bool divisible, IsMultiple(call, call.arg(0)));
  return Value::Bool(divisible);
}

StatusOr<Value> IsLowerCase(const Call& call) {
  ASSIGN_OR_RETURN(const std::string text, ToText(call.rt, call.self));
  return Value::Bool(IsLowerText(text));
}

StatusOr<Value> IsUpperCase(const Call& call) {
  ASSIGN_OR_RETURN(const std::string text, ToText(call.rt, call.self));
  return Value::Bool(IsUpperText(text));
}

StatusOr<Value> IsFilterName(const Call& call) {
  return Value::Bool(call.self.is_str() && FindFilter(call.self.text()) != nullptr);
}

StatusOr<Value> IsTestName(const Call& call) {
  return Value::Bool(call.self.is_str() && FindTest(call.self.text()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"boolean", IsKind<Kind::kBool>, ""},
    {"callable", IsCallable, ""},
    {"defined", IsDefined, ""},
    {"divisibleby", IsDivisibleBy, "num", 1},
    {"eq", Compares<Comparison::kEq>, "-", 1},
    {"equalto", Compares<Comparison::kEq>, "-", 1},
    {"==", Compares<Comparison::kEq>, "-", 1},
    {"escaped", IsEscaped, ""},
    {"even", IsEven, ""},
    {"false", IsFalse, ""},
    {"filter", IsFilterName, ""},
    {"float", IsKind<Kind::kFloat>, ""},
    {"ge", Compares<Comparison::kGtEq>, "-", 1},
    {">=", Compares<Comparison::kGtEq>, "-", 1},
    {"greaterthan", Compares<Comparison::kGt>, "-", 1},
    {"gt", Compares<Comparison::kGt>, "-", 1},
    {">", Compares<Comparison::kGt>, "-", 1},
    {"in", Compares<Comparison::kIn>, "seq", 1},
    {"integer", IsInteger, ""},
    {"iterable", IsIterableTest, ""},
    {"le", Compares<Comparison::kLtEq>, "-", 1},
    {"<=", Compares<Comparison::kLtEq>, "-", 1},
    {"lessthan", Compares<Comparison::kLt>, "-", 1},
    {"lower", IsLowerCase, ""},
    {"lt", Compares<Comparison::kLt>, "-", 1},
    {"<", Compares<Comparison::kLt>, "-", 1},
    {"mapping", IsKind<Kind::kDict>, ""},
    {"ne", Compares<Comparison::kNe>, "-", 1},
    {"!=", Compares<Comparison::kNe>, "-", 1},
    {"none", IsKind<Kind::kNone>, ""},
    {"number", IsNumber, ""},
    {"odd", IsOdd, ""},
    {"sameas", IsSameAs, "other", 1},
    {"sequence", IsSequence, ""},
    {"string", IsKind<Kind::kStr>, ""},
    {"test", IsTestName, ""},
    {"true", IsTrue, ""},
    {"undefined", IsKind<Kind::kUndefined>, ""},
    {"upper", IsUpperCase, ""},
};

}  // namespace

std::span<const Builtin> Tests() { return kTests; }

}  // namespace flotilla::jinja
