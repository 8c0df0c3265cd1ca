#include <utility>

#include "common/template/access.h"
#include "common/template/compare.h"
#include "common/template/interpreter.h"
#include "common/template/operators.h"

namespace flotilla::jinja {

StatusOr<Value> Interpreter::Eval(const Expr& expr) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(rt_.Step());
  StatusOr<Value> value = EvalKind(expr);
  if (!value.ok() && error_line_ == 0) error_line_ = expr.line;
  return value;
}

// Each case is a call, so that this frame, which recursion repeats, stays small.
StatusOr<Value> Interpreter::EvalKind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return Name(expr);
    case ExprKind::kDict:
      return DictLiteral(expr);
    case ExprKind::kItem:
      return Item(expr);
    case ExprKind::kCall:
      return CallExpr(expr, /*caller=*/nullptr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return FilterOrTest(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return Logical(expr);
    case ExprKind::kCompare:
      return Comparisons(expr);
    case ExprKind::kCond:
      return Conditional(expr);
    case ExprKind::kTuple:
    case ExprKind::kList:
    case ExprKind::kConcat: {
      ASSIGN_OR_RETURN(std::vector<Value> values, EvalAll(expr.operands));
      if (expr.kind == ExprKind::kConcat) return Concat(rt_, values);
      return expr.kind == ExprKind::kList ? rt_.NewList(std::move(values))
                                          : rt_.NewTuple(std::move(values));
    }
    case ExprKind::kAttr: {
      ASSIGN_OR_RETURN(const Value object, Eval(*expr.operands[0]));
      return GetAttribute(rt_, object, expr.name);
    }
    case ExprKind::kNot:
    case ExprKind::kNeg:
    case ExprKind::kPos: {
      ASSIGN_OR_RETURN(const Value value, Eval(*expr.operands[0]));
      if (expr.kind == ExprKind::kNot) return Value::Bool(!value.Truthy());
      return expr.kind == ExprKind::kNeg ? Negate(value) : Plus(value);
    }
    default:
      return BinaryOperator(expr);
  }
}

StatusOr<Value> Interpreter::Name(const Expr& expr) {
  const Value& value = Slot(expr.ref);
  if (!value.is_missing()) return value;
  return rt_.NewUndefined(StrCat("'", expr.name, "' is undefined"));
}

StatusOr<std::vector<Value>> Interpreter::EvalAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    ASSIGN_OR_RETURN(values.emplace_back(), Eval(*expr));
  }
  return values;
}

StatusOr<Value> Interpreter::DictLiteral(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, Eval(*expr.operands[i]));
    ASSIGN_OR_RETURN(Value value, Eval(*expr.operands[i + 1]));
    RETURN_IF_ERROR(SetKey(rt_, &dict, std::move(key), std::move(value)));
  }
  return rt_.NewDict(std::move(dict));
}

StatusOr<Value> Interpreter::Item(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, Eval(*expr.operands[0]));
  const Expr& index = *expr.operands[1];
  if (index.kind == ExprKind::kSlice) return Slice(object, index);
  ASSIGN_OR_RETURN(const Value key, Eval(index));
  return GetItem(rt_, object, key);
}

StatusOr<Value> Interpreter::Slice(const Value& object, const Expr& slice) {
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = Value::None();
    if (slice.operands[i] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], Eval(*slice.operands[i]));
  }
  return GetSlice(rt_, object, bounds[0], bounds[1], bounds[2]);
}

StatusOr<Value> Interpreter::Logical(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Eval(*expr.operands[0]));
  const bool stop_if = expr.kind == ExprKind::kOr;
  if (left.Truthy() == stop_if) return left;
  return Eval(*expr.operands[1]);
}

StatusOr<Value> Interpreter::Conditional(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value test, Eval(*expr.operands[0]));
  if (test.Truthy()) return Eval(*expr.operands[1]);
  if (expr.operands[2] != nullptr) return Eval(*expr.operands[2]);
  return rt_.NewUndefined(StrCat("the inline if-expression on line ", expr.line,
                                 " evaluated to false and no else section was defined."));
}

StatusOr<Value> Interpreter::Comparisons(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Eval(*expr.operands[i + 1]));
    ASSIGN_OR_RETURN(const bool holds, Compare(rt_, expr.comparisons[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

StatusOr<Value> Interpreter::BinaryOperator(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value left, Eval(*expr.operands[0]));
  ASSIGN_OR_RETURN(const Value right, Eval(*expr.operands[1]));
  return Arithmetic(rt_, expr.kind, left, right);
}

StatusOr<Value> Interpreter::FilterOrTest(const Expr& expr) {
  Value value;
  if (expr.operands[0] != nullptr) {
    ASSIGN_OR_RETURN(value, Eval(*expr.operands[0]));
  } else {
    value = *block_text_;
  }
  CallArgs args;
  if (expr.args != nullptr) {
    ASSIGN_OR_RETURN(args, EvalArgs(*expr.args));
  }
  if (expr.builtin == nullptr) {
    return TypeError(StrCat("No ", expr.kind == ExprKind::kFilter ? "filter" : "test", " named '",
                            expr.name, "' found."));
  }
  return CallBuiltin(rt_, *expr.builtin, value, args);
}

}  // namespace flotilla::jinja
