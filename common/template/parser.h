// Source → syntax tree. The grammar is jinja2's, its oddities included, without what needs other
// templates (extends, block, include, import, from), autoescape and recursive loops.
//
// Threads: one. Errors: kInvalidArgument for bad syntax, kUnimplemented for what is not supported,
// kResourceExhausted for nesting beyond the limit; each with its line. Time is linear in the
// source. Source: jinja2 3.1's parser.py.
#pragma once

#include <initializer_list>
#include <string_view>

#include "common/base/status.h"
#include "common/template/ast.h"
#include "common/template/lexer.h"
#include "common/template/limits.h"

namespace flotilla::jinja {

class Parser {
 public:
  Parser(std::string_view source, const ChatTemplateLimits& limits)
      : lexer_(source), limits_(limits) {}

  StatusOr<Block> Parse();

 private:
  using EndTags = std::initializer_list<std::string_view>;
  enum class TupleKind : uint8_t { kPlain, kInParentheses, kTarget, kTargetWithNamespace };

  // Tokens.
  Status Advance();
  StatusOr<const Token*> Peek();
  StatusOr<Token> Take();  // the current token; moves on
  Status Expect(TokenType type, std::string_view what);
  Status ExpectName(std::string_view name);
  StatusOr<std::string> TakeName();
  StatusOr<bool> SkipIf(TokenType type);
  StatusOr<bool> SkipIfName(std::string_view name);

  // Statements (parser_statement.cc).
  Status ParseBody(EndTags end, Block* body);
  Status ParseDataOrOutput(Block* body, bool* append);
  Status ParseStatement(Block* body);
  Status ParseStatements(EndTags end, Block* body, bool drop_end);
  StatusOr<Stmt> ParseSet();
  StatusOr<Stmt> ParseFor();
  StatusOr<Stmt> ParseIf();
  StatusOr<Stmt> ParseMacro();
  StatusOr<Stmt> ParseCallBlock();
  StatusOr<Stmt> ParseGeneration();
  StatusOr<Stmt> ParseFilterBlock();
  StatusOr<Stmt> ParseWith();
  StatusOr<Stmt> ParsePrint();
  StatusOr<Stmt> ParseLoopControl(StmtKind kind);
  Status ParseSignature(MacroDef* macro);
  Status ParseFunctionBody(EndTags end, MacroDef* macro);
  StatusOr<ExprPtr> ParseTarget(TupleKind kind);
  StatusOr<std::string> ParseTargetName();
  Status MarkStored(Expr* target) const;
  Status CheckLoopNotStored(const Expr& target) const;

  // Expressions (parser_expression.cc).
  StatusOr<ExprPtr> ParseTuple(TupleKind kind, bool with_condition = true);
  StatusOr<ExprPtr> ParseExpression(bool with_condition = true);
  StatusOr<ExprPtr> ParseBinary(int level);
  StatusOr<ExprPtr> ParseNot();
  StatusOr<ExprPtr> ParseCompare();
  StatusOr<bool> TakeComparison(Comparison* comparison);
  StatusOr<ExprPtr> ParseConcat();
  StatusOr<ExprPtr> ParseUnary(bool with_filter);
  StatusOr<ExprPtr> ParsePrimary(bool with_namespace);
  StatusOr<ExprPtr> ParseNameOrConstant(bool with_namespace);
  StatusOr<ExprPtr> ParseListLiteral();
  StatusOr<ExprPtr> ParseDictLiteral();
  StatusOr<ExprPtr> ParsePostfix(ExprPtr expr);
  StatusOr<ExprPtr> ParseFilterOrTest(ExprPtr expr);
  StatusOr<ExprPtr> ParseAttribute(ExprPtr expr);
  StatusOr<ExprPtr> ParseSubscript(ExprPtr expr);
  StatusOr<ExprPtr> ParseSubscribed();
  StatusOr<ExprPtr> ParseCall(ExprPtr callee);
  // One filter, the current token being its name.
  StatusOr<ExprPtr> ParseFilter(ExprPtr expr);
  // "| filter | filter …"; null if there is none and `expr` is null.
  StatusOr<ExprPtr> ParseFilters(ExprPtr expr);
  StatusOr<ExprPtr> ParseTest(ExprPtr expr);
  StatusOr<std::string> ParseDottedName();
  StatusOr<std::unique_ptr<Arguments>> ParseArguments();
  Status ParseArgument(Arguments* args);

  // A node over its operands and arguments; an error if the tree gets too high.
  StatusOr<ExprPtr> Finish(ExprPtr expr) const;
  StatusOr<ExprPtr> Unary(ExprKind kind, int line, ExprPtr operand) const;
  StatusOr<ExprPtr> Binary(ExprKind kind, int line, ExprPtr left, ExprPtr right) const;

  Status Fail(std::string_view message) const { return FailAt(current_.line, message); }
  static Status FailAt(int line, std::string_view message);
  std::string Describe(const Token& token) const;

  // Counts what recurses while it lives.
  class Nested {
   public:
    explicit Nested(Parser* parser) : parser_(parser) { ++parser_->nesting_; }
    ~Nested() { --parser_->nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    Status status() const;

   private:
    Parser* parser_;
  };

  Lexer lexer_;
  const ChatTemplateLimits limits_;
  Token current_;
  Token ahead_;
  bool has_ahead_ = false;
  int nesting_ = 0;
  int loops_ = 0;     // loops around the current token that a `break` there could end
  int for_tags_ = 0;  // all `for` blocks around the current token
};

}  // namespace flotilla::jinja
