#include <array>
#include <utility>

#include "common/template/parser.h"

namespace flotilla::jinja {
namespace {

struct BinaryOperator {
  int level;
  TokenType token;  // kName: the operator is a word
  std::string_view word;
  ExprKind kind;
};
// Lowest precedence first. Between the levels stand: `not` and comparisons (1, 2), `~` (2, 3).
enum Level : int { kOrLevel, kAndLevel, kSumLevel, kProductLevel, kPowLevel };
constexpr std::array kBinaryOperators = {
    BinaryOperator{kOrLevel, TokenType::kName, "or", ExprKind::kOr},
    BinaryOperator{kAndLevel, TokenType::kName, "and", ExprKind::kAnd},
    BinaryOperator{kSumLevel, TokenType::kAdd, "", ExprKind::kAdd},
    BinaryOperator{kSumLevel, TokenType::kSub, "", ExprKind::kSub},
    BinaryOperator{kProductLevel, TokenType::kMul, "", ExprKind::kMul},
    BinaryOperator{kProductLevel, TokenType::kDiv, "", ExprKind::kDiv},
    BinaryOperator{kProductLevel, TokenType::kFloorDiv, "", ExprKind::kFloorDiv},
    BinaryOperator{kProductLevel, TokenType::kMod, "", ExprKind::kMod},
    BinaryOperator{kPowLevel, TokenType::kPow, "", ExprKind::kPow},
};

const BinaryOperator* FindOperator(int level, const Token& token) {
  for (const BinaryOperator& op : kBinaryOperators) {
    if (op.level == level && token.Is(op.token) && (op.word.empty() || token.text == op.word)) {
      return &op;
    }
  }
  return nullptr;
}

bool EndsTuple(const Token& token) {
  return token.Is(TokenType::kVariableEnd) || token.Is(TokenType::kBlockEnd) ||
         token.Is(TokenType::kRightParen);
}

}  // namespace

StatusOr<ExprPtr> Parser::ParseTuple(TupleKind kind, bool with_condition) {
  const int line = current_.line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (EndsTuple(current_)) break;
    if (kind == TupleKind::kTarget && current_.IsName("in")) break;
    if (kind == TupleKind::kTarget || kind == TupleKind::kTargetWithNamespace) {
      ASSIGN_OR_RETURN(items.emplace_back(), ParsePrimary(kind == TupleKind::kTargetWithNamespace));
    } else {
      ASSIGN_OR_RETURN(items.emplace_back(), ParseExpression(with_condition));
    }
    ASSIGN_OR_RETURN(const bool comma, SkipIf(TokenType::kComma));
    if (!comma) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && kind != TupleKind::kInParentheses) {
    return Fail(StrCat("expected an expression, got ", Describe(current_)));
  }
  auto tuple = std::make_unique<Expr>(ExprKind::kTuple, line);
  tuple->operands = std::move(items);
  return Finish(std::move(tuple));
}

StatusOr<ExprPtr> Parser::ParseExpression(bool with_condition) {
  const Nested nested(this);
  RETURN_IF_ERROR(nested.status());
  ASSIGN_OR_RETURN(ExprPtr expr, ParseBinary(kOrLevel));
  while (with_condition && current_.IsName("if")) {
    auto condition = std::make_unique<Expr>(ExprKind::kCond, current_.line);
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(condition->operands.emplace_back(), ParseBinary(kOrLevel));
    condition->operands.push_back(std::move(expr));
    condition->operands.emplace_back();
    ASSIGN_OR_RETURN(const bool has_else, SkipIfName("else"));
    if (has_else) {
      ASSIGN_OR_RETURN(condition->operands.back(), ParseExpression());
    }
    ASSIGN_OR_RETURN(expr, Finish(std::move(condition)));
  }
  return expr;
}

StatusOr<ExprPtr> Parser::ParseBinary(int level) {
  const auto parse_operand = [this, level]() -> StatusOr<ExprPtr> {
    switch (level) {
      case kAndLevel:
        return ParseNot();
      case kSumLevel:
        return ParseConcat();
      case kPowLevel:
        return ParseUnary(/*with_filter=*/true);
      default:
        return ParseBinary(level + 1);
    }
  };
  ASSIGN_OR_RETURN(ExprPtr left, parse_operand());
  while (const BinaryOperator* op = FindOperator(level, current_)) {
    const int line = current_.line;
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, parse_operand());
    ASSIGN_OR_RETURN(left, Binary(op->kind, line, std::move(left), std::move(right)));
  }
  return left;
}

StatusOr<ExprPtr> Parser::ParseNot() {
  if (!current_.IsName("not")) return ParseCompare();
  const Nested nested(this);
  RETURN_IF_ERROR(nested.status());
  const int line = current_.line;
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  return Unary(ExprKind::kNot, line, std::move(operand));
}

StatusOr<ExprPtr> Parser::ParseCompare() {
  auto compare = std::make_unique<Expr>(ExprKind::kCompare, current_.line);
  ASSIGN_OR_RETURN(compare->operands.emplace_back(), ParseBinary(kSumLevel));
  while (true) {
    Comparison comparison{};
    ASSIGN_OR_RETURN(const bool found, TakeComparison(&comparison));
    if (!found) break;
    compare->comparisons.push_back(comparison);
    ASSIGN_OR_RETURN(compare->operands.emplace_back(), ParseBinary(kSumLevel));
  }
  if (compare->comparisons.empty()) return std::move(compare->operands[0]);
  return Finish(std::move(compare));
}

StatusOr<bool> Parser::TakeComparison(Comparison* comparison) {
  switch (current_.type) {
    case TokenType::kEq:
      *comparison = Comparison::kEq;
      break;
    case TokenType::kNe:
      *comparison = Comparison::kNe;
      break;
    case TokenType::kGt:
      *comparison = Comparison::kGt;
      break;
    case TokenType::kGtEq:
      *comparison = Comparison::kGtEq;
      break;
    case TokenType::kLt:
      *comparison = Comparison::kLt;
      break;
    case TokenType::kLtEq:
      *comparison = Comparison::kLtEq;
      break;
    default:
      if (current_.IsName("in")) {
        *comparison = Comparison::kIn;
        break;
      }
      if (!current_.IsName("not")) return false;
      ASSIGN_OR_RETURN(const Token* ahead, Peek());
      if (!ahead->IsName("in")) return false;
      RETURN_IF_ERROR(Advance());
      *comparison = Comparison::kNotIn;
  }
  RETURN_IF_ERROR(Advance());
  return true;
}

StatusOr<ExprPtr> Parser::ParseConcat() {
  ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(kProductLevel));
  if (!current_.Is(TokenType::kTilde)) return first;
  auto concat = std::make_unique<Expr>(ExprKind::kConcat, current_.line);
  concat->operands.push_back(std::move(first));
  while (current_.Is(TokenType::kTilde)) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(concat->operands.emplace_back(), ParseBinary(kProductLevel));
  }
  return Finish(std::move(concat));
}

StatusOr<ExprPtr> Parser::ParseUnary(bool with_filter) {
  ExprPtr expr;
  if (current_.Is(TokenType::kSub) || current_.Is(TokenType::kAdd)) {
    const Nested nested(this);
    RETURN_IF_ERROR(nested.status());
    const ExprKind kind = current_.Is(TokenType::kSub) ? ExprKind::kNeg : ExprKind::kPos;
    const int line = current_.line;
    RETURN_IF_ERROR(Advance());
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the StatusOr owns it
    ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filter=*/false));
    ASSIGN_OR_RETURN(expr, Unary(kind, line, std::move(operand)));
  } else {
    ASSIGN_OR_RETURN(expr, ParsePrimary(/*with_namespace=*/false));
  }
  ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  return with_filter ? ParseFilterOrTest(std::move(expr)) : std::move(expr);
}

StatusOr<ExprPtr> Parser::ParsePrimary(bool with_namespace) {
  auto constant = std::make_unique<Expr>(ExprKind::kConst, current_.line);
  switch (current_.type) {
    case TokenType::kName:
      return ParseNameOrConstant(with_namespace);
    case TokenType::kString: {
      std::string text;
      while (current_.Is(TokenType::kString)) {
        text += current_.text;
        RETURN_IF_ERROR(Advance());
      }
      constant->value = Value::ConstantStr(std::move(text));
      return constant;
    }
    case TokenType::kInteger:
      constant->value = Value::Int(current_.integer);
      RETURN_IF_ERROR(Advance());
      return constant;
    case TokenType::kFloat:
      constant->value = Value::Float(current_.real);
      RETURN_IF_ERROR(Advance());
      return constant;
    case TokenType::kLeftParen: {
      RETURN_IF_ERROR(Advance());
      ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple(TupleKind::kInParentheses));
      RETURN_IF_ERROR(Expect(TokenType::kRightParen, "')'"));
      return expr;
    }
    case TokenType::kLeftBracket:
      return ParseListLiteral();
    case TokenType::kLeftBrace:
      return ParseDictLiteral();
    default:
      return Fail(StrCat("unexpected ", Describe(current_)));
  }
}

StatusOr<ExprPtr> Parser::ParseNameOrConstant(bool with_namespace) {
  auto expr = std::make_unique<Expr>(ExprKind::kName, current_.line);
  ASSIGN_OR_RETURN(expr->name, TakeName());
  const bool is_true = expr->name == "true" || expr->name == "True";
  if (is_true || expr->name == "false" || expr->name == "False") {
    expr->kind = ExprKind::kConst;
    expr->value = Value::Bool(is_true);
  } else if (expr->name == "none" || expr->name == "None") {
    expr->kind = ExprKind::kConst;
    expr->value = Value::None();
  } else if (with_namespace && current_.Is(TokenType::kDot)) {
    RETURN_IF_ERROR(Advance());
    expr->kind = ExprKind::kNamespaceAttr;
    ASSIGN_OR_RETURN(expr->attribute, TakeName());
  }
  return expr;
}

StatusOr<ExprPtr> Parser::ParseListLiteral() {
  auto list = std::make_unique<Expr>(ExprKind::kList, current_.line);
  RETURN_IF_ERROR(Advance());
  while (!current_.Is(TokenType::kRightBracket)) {
    if (!list->operands.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    if (current_.Is(TokenType::kRightBracket)) break;
    ASSIGN_OR_RETURN(list->operands.emplace_back(), ParseExpression());
  }
  RETURN_IF_ERROR(Advance());
  return Finish(std::move(list));
}

StatusOr<ExprPtr> Parser::ParseDictLiteral() {
  auto dict = std::make_unique<Expr>(ExprKind::kDict, current_.line);
  RETURN_IF_ERROR(Advance());
  while (!current_.Is(TokenType::kRightBrace)) {
    if (!dict->operands.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    if (current_.Is(TokenType::kRightBrace)) break;
    ASSIGN_OR_RETURN(dict->operands.emplace_back(), ParseExpression());
    RETURN_IF_ERROR(Expect(TokenType::kColon, "':'"));
    ASSIGN_OR_RETURN(dict->operands.emplace_back(), ParseExpression());
  }
  RETURN_IF_ERROR(Advance());
  return Finish(std::move(dict));
}

}  // namespace flotilla::jinja
