// What follows an operand: attributes, subscripts, calls, filters and tests.
#include <set>
#include <utility>

#include "common/template/parser.h"

namespace flotilla::jinja {
namespace {

// What may follow a test's name without parentheses: `is divisibleby 3`.
bool StartsTestArgument(const Token& token) {
  switch (token.type) {
    case TokenType::kName:
      return token.text != "else" && token.text != "or" && token.text != "and";
    case TokenType::kString:
    case TokenType::kInteger:
    case TokenType::kFloat:
    case TokenType::kLeftBracket:
    case TokenType::kLeftBrace:
      return true;
    default:
      return false;
  }
}

}  // namespace

StatusOr<ExprPtr> Parser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (current_.Is(TokenType::kDot)) {
      ASSIGN_OR_RETURN(expr, ParseAttribute(std::move(expr)));
    } else if (current_.Is(TokenType::kLeftBracket)) {
      ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (current_.Is(TokenType::kLeftParen)) {
      ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

StatusOr<ExprPtr> Parser::ParseFilterOrTest(ExprPtr expr) {
  while (true) {
    if (current_.Is(TokenType::kPipe)) {
      ASSIGN_OR_RETURN(expr, ParseFilters(std::move(expr)));
    } else if (current_.IsName("is")) {
      ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (current_.Is(TokenType::kLeftParen)) {
      ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

StatusOr<ExprPtr> Parser::ParseAttribute(ExprPtr expr) {
  const int line = current_.line;
  RETURN_IF_ERROR(Advance());
  if (current_.Is(TokenType::kName)) {
    ASSIGN_OR_RETURN(ExprPtr attribute, Unary(ExprKind::kAttr, line, std::move(expr)));
    ASSIGN_OR_RETURN(attribute->name, TakeName());
    return attribute;
  }
  if (!current_.Is(TokenType::kInteger)) return Fail("expected name or number");
  ASSIGN_OR_RETURN(ExprPtr index, ParsePrimary(/*with_namespace=*/false));
  return Binary(ExprKind::kItem, line, std::move(expr), std::move(index));
}

StatusOr<ExprPtr> Parser::ParseSubscript(ExprPtr expr) {
  const int line = current_.line;
  RETURN_IF_ERROR(Advance());
  std::vector<ExprPtr> items;
  while (!current_.Is(TokenType::kRightBracket)) {
    if (!items.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    ASSIGN_OR_RETURN(items.emplace_back(), ParseSubscribed());
    if (items.size() > 1 &&
        (items.front()->kind == ExprKind::kSlice || items.back()->kind == ExprKind::kSlice)) {
      return Fail("a slice can't be part of a tuple");
    }
  }
  RETURN_IF_ERROR(Advance());
  ExprPtr index;
  if (items.size() == 1) {
    index = std::move(items[0]);
  } else {
    index = std::make_unique<Expr>(ExprKind::kTuple, line);
    index->operands = std::move(items);
    ASSIGN_OR_RETURN(index, Finish(std::move(index)));
  }
  return Binary(ExprKind::kItem, line, std::move(expr), std::move(index));
}

StatusOr<ExprPtr> Parser::ParseSubscribed() {
  auto slice = std::make_unique<Expr>(ExprKind::kSlice, current_.line);
  slice->operands.resize(3);
  if (!current_.Is(TokenType::kColon)) {
    ASSIGN_OR_RETURN(slice->operands[0], ParseExpression());
    if (!current_.Is(TokenType::kColon)) return std::move(slice->operands[0]);
  }
  const auto ends = [this] {
    return current_.Is(TokenType::kRightBracket) || current_.Is(TokenType::kComma);
  };
  RETURN_IF_ERROR(Advance());
  if (!current_.Is(TokenType::kColon) && !ends()) {
    ASSIGN_OR_RETURN(slice->operands[1], ParseExpression());
  }
  ASSIGN_OR_RETURN(const bool has_step, SkipIf(TokenType::kColon));
  if (has_step && !ends()) {
    ASSIGN_OR_RETURN(slice->operands[2], ParseExpression());
  }
  return Finish(std::move(slice));
}

StatusOr<ExprPtr> Parser::ParseCall(ExprPtr callee) {
  auto call = std::make_unique<Expr>(ExprKind::kCall, current_.line);
  call->operands.push_back(std::move(callee));
  ASSIGN_OR_RETURN(call->args, ParseArguments());
  return Finish(std::move(call));
}

StatusOr<std::unique_ptr<Arguments>> Parser::ParseArguments() {
  auto args = std::make_unique<Arguments>();
  std::set<std::string> names;
  RETURN_IF_ERROR(Expect(TokenType::kLeftParen, "'('"));
  bool first = true;
  while (!current_.Is(TokenType::kRightParen)) {
    if (!first) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    if (!first && current_.Is(TokenType::kRightParen)) break;
    first = false;
    const size_t named = args->named.size();
    RETURN_IF_ERROR(ParseArgument(args.get()));
    if (args->named.size() > named && !names.insert(args->named.back().first).second) {
      return Fail(StrCat("keyword argument repeated: ", args->named.back().first));
    }
  }
  RETURN_IF_ERROR(Advance());
  return args;
}

Status Parser::ParseArgument(Arguments* args) {
  const bool positional_may_follow =
      args->star == nullptr && args->star_star == nullptr && args->named.empty();
  const auto misplaced = [this] { return Fail("invalid syntax for function call expression"); };
  if (current_.Is(TokenType::kMul)) {
    if (args->star != nullptr || args->star_star != nullptr) return misplaced();
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(args->star, ParseExpression());
    return OkStatus();
  }
  if (args->star_star != nullptr) return misplaced();
  if (current_.Is(TokenType::kPow)) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(args->star_star, ParseExpression());
    return OkStatus();
  }
  if (current_.Is(TokenType::kName)) {
    ASSIGN_OR_RETURN(const Token* ahead, Peek());
    if (ahead->Is(TokenType::kAssign)) {
      ASSIGN_OR_RETURN(std::string name, TakeName());
      RETURN_IF_ERROR(Advance());
      ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      args->named.emplace_back(std::move(name), std::move(value));
      return OkStatus();
    }
  }
  if (!positional_may_follow) return misplaced();
  ASSIGN_OR_RETURN(args->positional.emplace_back(), ParseExpression());
  return OkStatus();
}

StatusOr<std::string> Parser::ParseDottedName() {
  ASSIGN_OR_RETURN(std::string name, TakeName());
  while (current_.Is(TokenType::kDot)) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(const std::string part, TakeName());
    name += "." + part;
  }
  return name;
}

StatusOr<ExprPtr> Parser::ParseFilters(ExprPtr expr) {
  while (current_.Is(TokenType::kPipe)) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
  }
  return expr;
}

StatusOr<ExprPtr> Parser::ParseFilter(ExprPtr expr) {
  auto filter = std::make_unique<Expr>(ExprKind::kFilter, current_.line);
  filter->operands.push_back(std::move(expr));
  ASSIGN_OR_RETURN(filter->name, ParseDottedName());
  if (current_.Is(TokenType::kLeftParen)) {
    ASSIGN_OR_RETURN(filter->args, ParseArguments());
  }
  return Finish(std::move(filter));
}

StatusOr<ExprPtr> Parser::ParseTest(ExprPtr expr) {
  auto test = std::make_unique<Expr>(ExprKind::kTest, current_.line);
  const int line = current_.line;
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(const bool negated, SkipIfName("not"));
  test->operands.push_back(std::move(expr));
  ASSIGN_OR_RETURN(test->name, ParseDottedName());
  if (current_.Is(TokenType::kLeftParen)) {
    ASSIGN_OR_RETURN(test->args, ParseArguments());
  } else if (StartsTestArgument(current_)) {
    if (current_.IsName("is")) return Fail("You cannot chain multiple tests with is");
    test->args = std::make_unique<Arguments>();
    ASSIGN_OR_RETURN(ExprPtr arg, ParsePrimary(/*with_namespace=*/false));
    ASSIGN_OR_RETURN(test->args->positional.emplace_back(), ParsePostfix(std::move(arg)));
  }
  ASSIGN_OR_RETURN(ExprPtr done, Finish(std::move(test)));
  return negated ? Unary(ExprKind::kNot, line, std::move(done)) : std::move(done);
}

}  // namespace flotilla::jinja
