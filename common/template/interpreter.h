// Runs a resolved syntax tree.
//
// Threads: one Interpreter runs once; the tree may be shared. Errors: what the template raises or
// does wrong, and limits; error_line() is then the line where it happened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/template/ast.h"
#include "common/template/builtin.h"
#include "common/template/iterate.h"
#include "common/template/objects.h"
#include "common/template/runtime.h"

namespace flotilla::jinja {

class Interpreter {
 public:
  // `inputs` are the names a template finds besides the global functions.
  Interpreter(Runtime& rt, const Dict& inputs) : rt_(rt), inputs_(inputs) {}

  StatusOr<std::string> Run(const MacroDef& root);
  int error_line() const { return error_line_; }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class FilteredWalk;  // for … if …

  // Statements (interpreter_statement.cc).
  StatusOr<Flow> Exec(const Block& block);
  StatusOr<Flow> ExecStmt(const Stmt& stmt);
  Status Output(const Stmt& stmt);
  Status Write(const Value& value);
  StatusOr<Flow> If(const Stmt& stmt);
  StatusOr<Flow> For(const Stmt& stmt);
  StatusOr<std::unique_ptr<Iterator>> WalkOf(const Stmt& loop, const Value& iterable);
  StatusOr<Flow> Walk(const Stmt& loop, Iterator& walk);
  StatusOr<Flow> WalkWithLoop(const Stmt& loop, Value iterable, std::unique_ptr<Iterator> walk);
  // Once around; *completed if the body ran to its end.
  StatusOr<Flow> Turn(const Stmt& loop, Value item, bool* completed);
  Status Set(const Stmt& stmt);
  StatusOr<Flow> SetBlock(const Stmt& stmt);
  StatusOr<Flow> FilterBlock(const Stmt& stmt);
  StatusOr<Flow> CaptureBody(const Stmt& stmt, Value* text);
  StatusOr<Flow> With(const Stmt& stmt);
  Status DefineMacro(const Stmt& stmt);
  Status CallBlock(const Stmt& stmt);

  // Variables.
  Value& Slot(const VarRef& ref);
  StatusOr<Value> Resolve(const std::string& name);
  Status EnterScope(const Scope& scope);
  Status CheckNamespaces(const Expr& target);
  Status Assign(const Expr& target, Value value);
  Status Unpack(const Expr& target, const Value& value);
  StatusOr<Value> Reassemble(const Expr& target);

  // Expressions (interpreter_expression.cc).
  StatusOr<Value> Eval(const Expr& expr);
  StatusOr<Value> EvalKind(const Expr& expr);
  StatusOr<Value> Name(const Expr& expr);
  StatusOr<std::vector<Value>> EvalAll(const std::vector<ExprPtr>& exprs);
  StatusOr<Value> DictLiteral(const Expr& expr);
  StatusOr<Value> Item(const Expr& expr);
  StatusOr<Value> Slice(const Value& object, const Expr& slice);
  StatusOr<Value> Logical(const Expr& expr);
  StatusOr<Value> Conditional(const Expr& expr);
  StatusOr<Value> Comparisons(const Expr& expr);
  StatusOr<Value> BinaryOperator(const Expr& expr);
  StatusOr<Value> FilterOrTest(const Expr& expr);

  // Calls (interpreter_call.cc).
  StatusOr<Value> CallExpr(const Expr& expr, const Value* caller);
  StatusOr<CallArgs> EvalArgs(const Arguments& args);
  Status SpreadNamed(const Value& mapping, CallArgs* args);
  StatusOr<Value> CallMacro(const MacroDef& macro, Activation* outer, CallArgs args);
  Status BindArguments(const MacroDef& macro, CallArgs args, Activation* activation);
  Status BindSpecial(const MacroDef& macro, CallArgs args, bool caller_found,
                     Activation* activation);
  Status FillDefaults(const MacroDef& macro);

  Runtime& rt_;
  const Dict& inputs_;
  Activation* frame_ = nullptr;
  std::string output_;
  std::string* out_ = &output_;
  const Value* block_text_ = nullptr;  // what a block's filters are applied to
  int error_line_ = 0;
};

}  // namespace flotilla::jinja
