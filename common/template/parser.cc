// Tokens and tree building; statements and expressions have files of their own.
#include "common/template/parser.h"

#include <algorithm>
#include <utility>

namespace flotilla::jinja {
namespace {

int HeightOf(const ExprPtr& expr) { return expr == nullptr ? 0 : expr->height; }

int HeightBelow(const Expr& expr) {
  int height = 0;
  for (const ExprPtr& operand : expr.operands) height = std::max(height, HeightOf(operand));
  if (expr.args == nullptr) return height;
  for (const ExprPtr& arg : expr.args->positional) height = std::max(height, HeightOf(arg));
  for (const auto& [name, arg] : expr.args->named) height = std::max(height, HeightOf(arg));
  return std::max({height, HeightOf(expr.args->star), HeightOf(expr.args->star_star)});
}

Status TooDeep(int line, int limit) {
  return absl::ResourceExhaustedError(
      StrCat("line ", line, ": the chat template passed its limit max_nesting = ", limit));
}

}  // namespace

StatusOr<Block> Parser::Parse() {
  RETURN_IF_ERROR(Advance());
  Block body;
  RETURN_IF_ERROR(ParseBody({}, &body));
  return body;
}

Status Parser::Advance() {
  if (has_ahead_) {
    current_ = std::move(ahead_);
    has_ahead_ = false;
    return OkStatus();
  }
  ASSIGN_OR_RETURN(current_, lexer_.Next());
  return OkStatus();
}

StatusOr<const Token*> Parser::Peek() {
  if (!has_ahead_) {
    ASSIGN_OR_RETURN(ahead_, lexer_.Next());
    has_ahead_ = true;
  }
  return &ahead_;
}

StatusOr<Token> Parser::Take() {
  Token token = std::move(current_);
  RETURN_IF_ERROR(Advance());
  return token;
}

Status Parser::Expect(TokenType type, std::string_view what) {
  if (current_.Is(type)) return Advance();
  return Fail(StrCat("expected ", what, ", got ", Describe(current_)));
}

Status Parser::ExpectName(std::string_view name) {
  if (current_.IsName(name)) return Advance();
  return Fail(StrCat("expected '", name, "', got ", Describe(current_)));
}

StatusOr<std::string> Parser::TakeName() {
  if (!current_.Is(TokenType::kName)) {
    return Fail(StrCat("expected a name, got ", Describe(current_)));
  }
  ASSIGN_OR_RETURN(Token token, Take());
  return std::move(token.text);
}

StatusOr<bool> Parser::SkipIf(TokenType type) {
  if (!current_.Is(type)) return false;
  RETURN_IF_ERROR(Advance());
  return true;
}

StatusOr<bool> Parser::SkipIfName(std::string_view name) {
  if (!current_.IsName(name)) return false;
  RETURN_IF_ERROR(Advance());
  return true;
}

StatusOr<ExprPtr> Parser::Finish(ExprPtr expr) const {
  expr->height = HeightBelow(*expr) + 1;
  if (expr->height > limits_.max_nesting) return TooDeep(expr->line, limits_.max_nesting);
  return expr;
}

StatusOr<ExprPtr> Parser::Unary(ExprKind kind, int line, ExprPtr operand) const {
  auto expr = std::make_unique<Expr>(kind, line);
  expr->operands.push_back(std::move(operand));
  return Finish(std::move(expr));
}

StatusOr<ExprPtr> Parser::Binary(ExprKind kind, int line, ExprPtr left, ExprPtr right) const {
  auto expr = std::make_unique<Expr>(kind, line);
  expr->operands.push_back(std::move(left));
  expr->operands.push_back(std::move(right));
  return Finish(std::move(expr));
}

Status Parser::Nested::status() const {
  const int limit = parser_->limits_.max_nesting;
  return parser_->nesting_ > limit ? TooDeep(parser_->current_.line, limit) : OkStatus();
}

Status Parser::FailAt(int line, std::string_view message) {
  return absl::InvalidArgumentError(StrCat("line ", line, ": ", message));
}

std::string Parser::Describe(const Token& token) const {
  switch (token.type) {
    case TokenType::kEof:
      return "the end of the template";
    case TokenType::kData:
      return "text";
    case TokenType::kVariableEnd:
    case TokenType::kBlockEnd:
      return "the end of the tag";
    case TokenType::kString:
      return "a string";
    default:
      return StrCat("'", token.text, "'");
  }
}

}  // namespace flotilla::jinja
