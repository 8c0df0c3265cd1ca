#include <algorithm>
#include <set>
#include <utility>

#include "common/template/parser.h"

namespace flotilla::jinja {
namespace {

constexpr std::string_view kUnsupportedTags[] = {"autoescape", "block",  "extends",
                                                 "from",       "import", "include"};

bool Contains(std::initializer_list<std::string_view> tags, const Token& token) {
  return token.Is(TokenType::kName) &&
         std::find(tags.begin(), tags.end(), token.text) != tags.end();
}

}  // namespace

// Up to one of the tags `end`, whose name is then the current token, or to the template's end.
Status Parser::ParseBody(EndTags end, Block* body) {
  bool append = false;  // whether the last statement is output that may be added to
  while (!current_.Is(TokenType::kEof)) {
    if (!current_.Is(TokenType::kBlockBegin)) {
      RETURN_IF_ERROR(ParseDataOrOutput(body, &append));
      continue;
    }
    append = false;
    RETURN_IF_ERROR(Advance());
    if (Contains(end, current_)) return OkStatus();
    RETURN_IF_ERROR(ParseStatement(body));
    RETURN_IF_ERROR(Expect(TokenType::kBlockEnd, "the end of the tag"));
  }
  return OkStatus();
}

Status Parser::ParseDataOrOutput(Block* body, bool* append) {
  ExprPtr expr;
  const int line = current_.line;
  if (current_.Is(TokenType::kData)) {
    expr = std::make_unique<Expr>(ExprKind::kConst, line);
    expr->value = Value::ConstantStr(std::exchange(current_.text, {}));
    RETURN_IF_ERROR(Advance());
  } else {
    RETURN_IF_ERROR(Expect(TokenType::kVariableBegin, "a tag"));
    ASSIGN_OR_RETURN(expr, ParseTuple(TupleKind::kPlain));
    RETURN_IF_ERROR(Expect(TokenType::kVariableEnd, "the end of the tag"));
  }
  if (!*append) body->emplace_back(StmtKind::kOutput, line);
  body->back().exprs.push_back(std::move(expr));
  *append = true;
  return OkStatus();
}

Status Parser::ParseStatement(Block* body) {
  const Nested nested(this);
  RETURN_IF_ERROR(nested.status());
  using Parse = StatusOr<Stmt> (Parser::*)();
  static constexpr std::pair<std::string_view, Parse> kTags[] = {
      {"for", &Parser::ParseFor},
      {"if", &Parser::ParseIf},
      {"print", &Parser::ParsePrint},
      {"macro", &Parser::ParseMacro},
      {"set", &Parser::ParseSet},
      {"with", &Parser::ParseWith},
      {"call", &Parser::ParseCallBlock},
      {"filter", &Parser::ParseFilterBlock},
      {"generation", &Parser::ParseGeneration},
  };
  if (!current_.Is(TokenType::kName)) return Fail("tag name expected");
  for (const auto& [name, parse] : kTags) {
    if (current_.text != name) continue;
    ASSIGN_OR_RETURN(Stmt statement, (this->*parse)());
    body->push_back(std::move(statement));
    return OkStatus();
  }
  if (current_.text == "break" || current_.text == "continue") {
    const StmtKind kind = current_.text == "break" ? StmtKind::kBreak : StmtKind::kContinue;
    ASSIGN_OR_RETURN(Stmt statement, ParseLoopControl(kind));
    body->push_back(std::move(statement));
    return OkStatus();
  }
  if (std::count(std::begin(kUnsupportedTags), std::end(kUnsupportedTags), current_.text) != 0) {
    return absl::UnimplementedError(StrCat("line ", current_.line, ": the tag '", current_.text,
                                           "' is not supported in chat templates"));
  }
  return Fail(StrCat("unknown tag '", current_.text, "'"));
}

// From the end of the opening tag up to one of `end`, whose name is then the current token, or the
// one behind it.
Status Parser::ParseStatements(EndTags end, Block* body, bool drop_end) {
  RETURN_IF_ERROR(SkipIf(TokenType::kColon).status());
  RETURN_IF_ERROR(Expect(TokenType::kBlockEnd, "the end of the tag"));
  RETURN_IF_ERROR(ParseBody(end, body));
  if (current_.Is(TokenType::kEof)) {
    return Fail(StrCat("unexpected end of the template, '", *end.begin(), "' is missing"));
  }
  return drop_end ? Advance() : OkStatus();
}

StatusOr<Stmt> Parser::ParseSet() {
  Stmt set(StmtKind::kSet, current_.line);
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(set.target, ParseTarget(TupleKind::kTargetWithNamespace));
  ASSIGN_OR_RETURN(const bool has_value, SkipIf(TokenType::kAssign));
  if (has_value) {
    ASSIGN_OR_RETURN(set.expr, ParseTuple(TupleKind::kPlain));
    return set;
  }
  set.kind = StmtKind::kSetBlock;
  ASSIGN_OR_RETURN(set.expr, ParseFilters(nullptr));
  RETURN_IF_ERROR(ParseStatements({"endset"}, &set.body, /*drop_end=*/true));
  return set;
}

StatusOr<Stmt> Parser::ParseFor() {
  Stmt loop(StmtKind::kFor, current_.line);
  RETURN_IF_ERROR(Advance());
  ++for_tags_;
  ASSIGN_OR_RETURN(loop.target, ParseTarget(TupleKind::kTarget));
  RETURN_IF_ERROR(ExpectName("in"));
  ASSIGN_OR_RETURN(loop.expr, ParseTuple(TupleKind::kPlain, /*with_condition=*/false));
  ASSIGN_OR_RETURN(const bool has_test, SkipIfName("if"));
  if (has_test) {
    ASSIGN_OR_RETURN(loop.test, ParseExpression());
  }
  if (current_.IsName("recursive")) {
    return absl::UnimplementedError(
        StrCat("line ", current_.line, ": recursive loops are not supported in chat templates"));
  }
  ++loops_;
  RETURN_IF_ERROR(ParseStatements({"endfor", "else"}, &loop.body, /*drop_end=*/false));
  --loops_;
  ASSIGN_OR_RETURN(const std::string end, TakeName());
  if (end == "else") {
    RETURN_IF_ERROR(ParseStatements({"endfor"}, &loop.otherwise, /*drop_end=*/true));
  }
  --for_tags_;
  return loop;
}

StatusOr<Stmt> Parser::ParseIf() {
  Stmt statement(StmtKind::kIf, current_.line);
  std::string end = "elif";
  while (end == "elif") {
    RETURN_IF_ERROR(Advance());
    Stmt::Branch& branch = statement.branches.emplace_back();
    ASSIGN_OR_RETURN(branch.test, ParseTuple(TupleKind::kPlain, /*with_condition=*/false));
    RETURN_IF_ERROR(ParseStatements({"elif", "else", "endif"}, &branch.body, /*drop_end=*/false));
    end = current_.text;
  }
  RETURN_IF_ERROR(Advance());
  if (end == "else") {
    RETURN_IF_ERROR(ParseStatements({"endif"}, &statement.otherwise, /*drop_end=*/true));
  }
  return statement;
}

StatusOr<Stmt> Parser::ParseMacro() {
  Stmt statement(StmtKind::kMacro, current_.line);
  RETURN_IF_ERROR(Advance());
  statement.macro = std::make_unique<MacroDef>();
  ASSIGN_OR_RETURN(statement.macro->name, ParseTargetName());
  RETURN_IF_ERROR(ParseSignature(statement.macro.get()));
  RETURN_IF_ERROR(ParseFunctionBody({"endmacro"}, statement.macro.get()));
  return statement;
}

StatusOr<Stmt> Parser::ParseCallBlock() {
  Stmt statement(StmtKind::kCallBlock, current_.line);
  RETURN_IF_ERROR(Advance());
  statement.macro = std::make_unique<MacroDef>();
  if (current_.Is(TokenType::kLeftParen)) RETURN_IF_ERROR(ParseSignature(statement.macro.get()));
  ASSIGN_OR_RETURN(statement.expr, ParseExpression());
  if (statement.expr->kind != ExprKind::kCall) return FailAt(statement.line, "expected call");
  RETURN_IF_ERROR(ParseFunctionBody({"endcall"}, statement.macro.get()));
  return statement;
}

// transformers' {% generation %} marks what the assistant says; for the text it is a call block.
StatusOr<Stmt> Parser::ParseGeneration() {
  Stmt statement(StmtKind::kCallBlock, current_.line);
  RETURN_IF_ERROR(Advance());
  statement.macro = std::make_unique<MacroDef>();
  RETURN_IF_ERROR(ParseFunctionBody({"endgeneration"}, statement.macro.get()));
  return statement;
}

StatusOr<Stmt> Parser::ParseFilterBlock() {
  Stmt statement(StmtKind::kFilterBlock, current_.line);
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(ExprPtr first, ParseFilter(nullptr));
  ASSIGN_OR_RETURN(statement.expr, ParseFilters(std::move(first)));
  RETURN_IF_ERROR(ParseStatements({"endfilter"}, &statement.body, /*drop_end=*/true));
  return statement;
}

StatusOr<Stmt> Parser::ParseWith() {
  Stmt statement(StmtKind::kWith, current_.line);
  RETURN_IF_ERROR(Advance());
  while (!current_.Is(TokenType::kBlockEnd)) {
    if (!statement.targets.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    // Like a macro's parameters, these may have the name "loop".
    ASSIGN_OR_RETURN(ExprPtr target, ParseTuple(TupleKind::kTarget));
    RETURN_IF_ERROR(MarkStored(target.get()));
    statement.targets.push_back(std::move(target));
    RETURN_IF_ERROR(Expect(TokenType::kAssign, "'='"));
    ASSIGN_OR_RETURN(statement.exprs.emplace_back(), ParseExpression());
  }
  RETURN_IF_ERROR(ParseStatements({"endwith"}, &statement.body, /*drop_end=*/true));
  return statement;
}

StatusOr<Stmt> Parser::ParsePrint() {
  Stmt statement(StmtKind::kOutput, current_.line);
  RETURN_IF_ERROR(Advance());
  while (!current_.Is(TokenType::kBlockEnd)) {
    if (!statement.exprs.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    ASSIGN_OR_RETURN(statement.exprs.emplace_back(), ParseExpression());
  }
  return statement;
}

StatusOr<Stmt> Parser::ParseLoopControl(StmtKind kind) {
  if (loops_ == 0) return Fail(StrCat("'", current_.text, "' outside loop"));
  Stmt statement(kind, current_.line);
  RETURN_IF_ERROR(Advance());
  return statement;
}

Status Parser::ParseSignature(MacroDef* macro) {
  std::set<std::string> names;
  RETURN_IF_ERROR(Expect(TokenType::kLeftParen, "'('"));
  while (!current_.Is(TokenType::kRightParen)) {
    if (!macro->params.empty()) RETURN_IF_ERROR(Expect(TokenType::kComma, "','"));
    auto param = std::make_unique<Expr>(ExprKind::kName, current_.line);
    ASSIGN_OR_RETURN(param->name, ParseTargetName());
    param->stores = true;
    if (!names.insert(param->name).second) {
      return Fail(StrCat("duplicate argument '", param->name, "'"));
    }
    ASSIGN_OR_RETURN(const bool has_default, SkipIf(TokenType::kAssign));
    if (has_default) {
      ASSIGN_OR_RETURN(macro->defaults.emplace_back(), ParseExpression());
    } else if (!macro->defaults.empty()) {
      return Fail("non-default argument follows default argument");
    }
    macro->params.push_back(std::move(param));
  }
  return Advance();
}

Status Parser::ParseFunctionBody(EndTags end, MacroDef* macro) {
  const int loops_outside = std::exchange(loops_, 0);
  RETURN_IF_ERROR(ParseStatements(end, &macro->body, /*drop_end=*/true));
  loops_ = loops_outside;
  return OkStatus();
}

StatusOr<ExprPtr> Parser::ParseTarget(TupleKind kind) {
  ASSIGN_OR_RETURN(ExprPtr target, ParseTuple(kind));
  RETURN_IF_ERROR(MarkStored(target.get()));
  RETURN_IF_ERROR(CheckLoopNotStored(*target));
  return target;
}

StatusOr<std::string> Parser::ParseTargetName() {
  static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                    "True", "False", "None"};
  ASSIGN_OR_RETURN(std::string name, TakeName());
  if (std::count(std::begin(kConstants), std::end(kConstants), name) != 0) {
    return Fail(StrCat("can't assign to '", name, "'"));
  }
  return name;
}

Status Parser::MarkStored(Expr* target) const {
  switch (target->kind) {
    case ExprKind::kName:
      target->stores = true;
      return OkStatus();
    case ExprKind::kNamespaceAttr:
      return OkStatus();
    case ExprKind::kTuple:
      for (const ExprPtr& item : target->operands) RETURN_IF_ERROR(MarkStored(item.get()));
      return OkStatus();
    default:
      return FailAt(target->line, "can't assign to this expression");
  }
}

Status Parser::CheckLoopNotStored(const Expr& target) const {
  if (for_tags_ > 0 && target.kind == ExprKind::kName && target.name == "loop") {
    return FailAt(target.line, "can't assign to the special variable 'loop' inside of a loop");
  }
  if (target.kind != ExprKind::kTuple) return OkStatus();
  for (const ExprPtr& item : target.operands) RETURN_IF_ERROR(CheckLoopNotStored(*item));
  return OkStatus();
}

}  // namespace flotilla::jinja
