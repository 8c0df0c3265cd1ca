#include <memory>
#include <utility>

#include "common/template/interpreter.h"
#include "common/template/to_text.h"

namespace flotilla::jinja {

// The items of `walk` for which a loop's own condition holds. Its variables are its own; it may be
// asked for the next item while any function runs (loop.last in a macro).
class Interpreter::FilteredWalk : public Iterator {
 public:
  FilteredWalk(Interpreter* interpreter, const Stmt& loop, std::unique_ptr<Iterator> walk)
      : interpreter_(interpreter),
        loop_(loop),
        frame_(interpreter->frame_),
        walk_(std::move(walk)) {}

  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    // The test asks its own loop for what comes next.
    if (std::exchange(running_, true)) return TypeError("generator already executing");
    Activation* const caller_frame = std::exchange(interpreter_->frame_, frame_);
    StatusOr<bool> found = NextInFrame(rt, item);
    interpreter_->frame_ = caller_frame;
    running_ = false;
    return found;
  }

 private:
  StatusOr<bool> NextInFrame(Runtime& rt, Value* item) {
    if (!std::exchange(entered_, true)) {
      RETURN_IF_ERROR(interpreter_->EnterScope(loop_.test_scope));
    }
    while (true) {
      Value next;
      ASSIGN_OR_RETURN(const bool found, walk_->Next(rt, &next));
      if (!found) return false;
      RETURN_IF_ERROR(interpreter_->Assign(*loop_.test_target, std::move(next)));
      ASSIGN_OR_RETURN(const Value holds, interpreter_->Eval(*loop_.test));
      if (!holds.Truthy()) continue;
      ASSIGN_OR_RETURN(*item, interpreter_->Reassemble(*loop_.test_target));
      return true;
    }
  }

  Interpreter* interpreter_;
  const Stmt& loop_;
  Activation* frame_;
  std::unique_ptr<Iterator> walk_;
  bool entered_ = false;
  bool running_ = false;
};

StatusOr<std::string> Interpreter::Run(const MacroDef& root) {
  const auto activation =
      std::make_shared<Activation>(static_cast<size_t>(root.num_slots), nullptr);
  frame_ = activation.get();
  RETURN_IF_ERROR(EnterScope(root.scope));
  RETURN_IF_ERROR(Exec(root.body).status());
  frame_ = nullptr;
  return std::move(output_);
}

StatusOr<Interpreter::Flow> Interpreter::Exec(const Block& block) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  for (const Stmt& stmt : block) {
    StatusOr<Flow> flow = ExecStmt(stmt);
    if (!flow.ok() && error_line_ == 0) error_line_ = stmt.line;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

StatusOr<Interpreter::Flow> Interpreter::ExecStmt(const Stmt& stmt) {
  RETURN_IF_ERROR(rt_.Step());
  switch (stmt.kind) {
    case StmtKind::kIf:
      return If(stmt);
    case StmtKind::kFor:
      return For(stmt);
    case StmtKind::kSetBlock:
      return SetBlock(stmt);
    case StmtKind::kFilterBlock:
      return FilterBlock(stmt);
    case StmtKind::kWith:
      return With(stmt);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kOutput:
      RETURN_IF_ERROR(Output(stmt));
      return Flow::kNext;
    case StmtKind::kSet:
      RETURN_IF_ERROR(Set(stmt));
      return Flow::kNext;
    case StmtKind::kMacro:
      RETURN_IF_ERROR(DefineMacro(stmt));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      RETURN_IF_ERROR(CallBlock(stmt));
      return Flow::kNext;
  }
  return Flow::kNext;
}

Status Interpreter::Output(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.exprs) {
    if (expr->kind == ExprKind::kConst) {
      RETURN_IF_ERROR(Write(expr->value));
      continue;
    }
    ASSIGN_OR_RETURN(const Value value, Eval(*expr));
    RETURN_IF_ERROR(Write(value));
  }
  return OkStatus();
}

Status Interpreter::Write(const Value& value) {
  RETURN_IF_ERROR(AppendStr(rt_, value, out_));
  if (out_ == &output_ && output_.size() > rt_.limits().max_output_bytes) {
    return absl::ResourceExhaustedError(StrCat(
        "the chat template passed its limit max_output_bytes = ", rt_.limits().max_output_bytes));
  }
  return OkStatus();
}

StatusOr<Interpreter::Flow> Interpreter::If(const Stmt& stmt) {
  for (const Stmt::Branch& branch : stmt.branches) {
    ASSIGN_OR_RETURN(const Value test, Eval(*branch.test));
    if (test.Truthy()) return Exec(branch.body);
  }
  return Exec(stmt.otherwise);
}

StatusOr<Interpreter::Flow> Interpreter::For(const Stmt& stmt) {
  ASSIGN_OR_RETURN(Value iterable, Eval(*stmt.expr));
  ASSIGN_OR_RETURN(std::unique_ptr<Iterator> walk, WalkOf(stmt, iterable));
  if (stmt.loop_slot < 0) return Walk(stmt, *walk);
  if (stmt.test != nullptr) {
    // `loop` may be kept, and then asks for items when this function has returned.
    RETURN_IF_ERROR(frame_->Capture(rt_));
    iterable = Value();
  }
  return WalkWithLoop(stmt, std::move(iterable), std::move(walk));
}

StatusOr<std::unique_ptr<Iterator>> Interpreter::WalkOf(const Stmt& loop, const Value& iterable) {
  ASSIGN_OR_RETURN(std::unique_ptr<Iterator> walk, Iterate(rt_, iterable));
  if (loop.test == nullptr) return walk;
  return std::make_unique<FilteredWalk>(this, loop, std::move(walk));
}

StatusOr<Interpreter::Flow> Interpreter::Walk(const Stmt& loop, Iterator& walk) {
  bool completed = false;
  while (true) {
    Value item;
    ASSIGN_OR_RETURN(const bool found, walk.Next(rt_, &item));
    if (!found) break;
    ASSIGN_OR_RETURN(const Flow flow, Turn(loop, std::move(item), &completed));
    if (flow == Flow::kBreak) break;
  }
  // jinja2's `else` belongs to loops of which no turn ran to its end.
  if (completed) return Flow::kNext;
  RETURN_IF_ERROR(EnterScope(loop.otherwise_scope));
  return Exec(loop.otherwise);
}

namespace {

// Lets a LoopContext be walked over like any iterator.
class LoopWalk : public Iterator {
 public:
  explicit LoopWalk(LoopContext* loop) : loop_(loop) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override { return loop_->Next(rt, item); }

 private:
  LoopContext* loop_;
};

}  // namespace

StatusOr<Interpreter::Flow> Interpreter::WalkWithLoop(const Stmt& loop, Value iterable,
                                                      std::unique_ptr<Iterator> walk) {
  auto context = std::make_shared<LoopContext>(std::move(iterable), std::move(walk));
  LoopContext* const raw = context.get();
  Value& slot = frame_->slots[static_cast<size_t>(loop.loop_slot)];
  ASSIGN_OR_RETURN(slot, rt_.NewCyclic(Kind::kLoop, std::move(context)));
  LoopWalk loop_walk(raw);
  StatusOr<Flow> flow = Walk(loop, loop_walk);
  slot = Value();
  rt_.DropLast(raw);
  return flow;
}

StatusOr<Interpreter::Flow> Interpreter::Turn(const Stmt& loop, Value item, bool* completed) {
  RETURN_IF_ERROR(Assign(*loop.target, std::move(item)));
  RETURN_IF_ERROR(EnterScope(loop.scope));
  ASSIGN_OR_RETURN(const Flow flow, Exec(loop.body));
  if (flow == Flow::kNext) *completed = true;
  return flow;
}

Status Interpreter::Set(const Stmt& stmt) {
  RETURN_IF_ERROR(CheckNamespaces(*stmt.target));
  ASSIGN_OR_RETURN(Value value, Eval(*stmt.expr));
  return Assign(*stmt.target, std::move(value));
}

// A body's output as a value. Not set if the body was left by break or continue.
StatusOr<Interpreter::Flow> Interpreter::CaptureBody(const Stmt& stmt, Value* text) {
  RETURN_IF_ERROR(EnterScope(stmt.scope));
  std::string buffer;
  std::string* const outer = std::exchange(out_, &buffer);
  StatusOr<Flow> flow = Exec(stmt.body);
  out_ = outer;
  if (!flow.ok() || *flow != Flow::kNext) return flow;
  ASSIGN_OR_RETURN(*text, rt_.NewStr(std::move(buffer)));
  if (stmt.expr == nullptr) return flow;
  const Value plain = *text;
  const Value* const outer_text = std::exchange(block_text_, &plain);
  StatusOr<Value> filtered = Eval(*stmt.expr);
  block_text_ = outer_text;
  ASSIGN_OR_RETURN(*text, std::move(filtered));
  return flow;
}

StatusOr<Interpreter::Flow> Interpreter::SetBlock(const Stmt& stmt) {
  Value value;
  ASSIGN_OR_RETURN(const Flow flow, CaptureBody(stmt, &value));
  if (flow != Flow::kNext) return flow;
  RETURN_IF_ERROR(CheckNamespaces(*stmt.target));
  RETURN_IF_ERROR(Assign(*stmt.target, std::move(value)));
  return flow;
}

StatusOr<Interpreter::Flow> Interpreter::FilterBlock(const Stmt& stmt) {
  Value value;
  ASSIGN_OR_RETURN(const Flow flow, CaptureBody(stmt, &value));
  if (flow != Flow::kNext) return flow;
  if (!value.is_str()) return TypeError("a filter block's result must be a str");
  RETURN_IF_ERROR(Write(value));
  return flow;
}

StatusOr<Interpreter::Flow> Interpreter::With(const Stmt& stmt) {
  ASSIGN_OR_RETURN(std::vector<Value> values, EvalAll(stmt.exprs));
  RETURN_IF_ERROR(EnterScope(stmt.scope));
  for (size_t i = 0; i < values.size(); ++i) {
    RETURN_IF_ERROR(Assign(*stmt.targets[i], std::move(values[i])));
  }
  return Exec(stmt.body);
}

Status Interpreter::DefineMacro(const Stmt& stmt) {
  RETURN_IF_ERROR(frame_->Capture(rt_));
  RETURN_IF_ERROR(rt_.Charge(sizeof(Macro)));
  Slot(stmt.ref) = Value(Kind::kMacro, std::make_shared<Macro>(stmt.macro.get(), frame_));
  return OkStatus();
}

Status Interpreter::CallBlock(const Stmt& stmt) {
  RETURN_IF_ERROR(frame_->Capture(rt_));
  StatusOr<Value> result;
  if (stmt.expr == nullptr) {
    result = CallMacro(*stmt.macro, frame_, {});
  } else {
    RETURN_IF_ERROR(rt_.Charge(sizeof(Macro)));
    const Value caller(Kind::kMacro, std::make_shared<Macro>(stmt.macro.get(), frame_));
    result = CallExpr(*stmt.expr, &caller);
  }
  RETURN_IF_ERROR(result.status());
  if (!result->is_str()) return TypeError("what a call block calls must return a str");
  return Write(*result);
}

Value& Interpreter::Slot(const VarRef& ref) {
  Activation* activation = frame_;
  for (int i = 0; i < ref.hops; ++i) activation = activation->parent;
  return activation->slots[static_cast<size_t>(ref.slot)];
}

// An input or a global function; missing if there is neither.
StatusOr<Value> Interpreter::Resolve(const std::string& name) {
  const Value* input = inputs_.Find(name);
  if (input != nullptr) return *input;
  const Builtin* global = FindGlobal(name);
  if (global == nullptr) return Value();
  RETURN_IF_ERROR(rt_.Charge(sizeof(Function)));
  return Value(Kind::kFunction, std::make_shared<Function>(global, Value()));
}

Status Interpreter::EnterScope(const Scope& scope) {
  for (const ScopeVariable& variable : scope.variables) {
    RETURN_IF_ERROR(rt_.Step());
    Value value;
    if (variable.from == ScopeVariable::From::kOuter) {
      value = Slot(variable.outer);
    } else if (variable.from == ScopeVariable::From::kContext) {
      ASSIGN_OR_RETURN(value, Resolve(variable.name));
    }
    frame_->slots[static_cast<size_t>(variable.slot)] = std::move(value);
  }
  return OkStatus();
}

Status Interpreter::CheckNamespaces(const Expr& target) {
  if (target.kind == ExprKind::kNamespaceAttr && !Slot(target.ref).is(Kind::kNamespace)) {
    return TypeError("cannot assign attribute on non-namespace object");
  }
  for (const ExprPtr& item : target.operands) RETURN_IF_ERROR(CheckNamespaces(*item));
  return OkStatus();
}

Status Interpreter::Assign(const Expr& target, Value value) {
  switch (target.kind) {
    case ExprKind::kName:
      Slot(target.ref) = std::move(value);
      return OkStatus();
    case ExprKind::kTuple:
      return Unpack(target, value);
    default: {
      Value& ns = Slot(target.ref);
      if (!ns.is(Kind::kNamespace)) {  // an earlier target of the same tuple replaced it
        return TypeError("cannot assign attribute on non-namespace object");
      }
      ASSIGN_OR_RETURN(Value key, rt_.NewStr(target.attribute));
      ns.As<Namespace>().attributes.Set(std::move(key), std::move(value));
      return OkStatus();
    }
  }
}

Status Interpreter::Unpack(const Expr& target, const Value& value) {
  const size_t wanted = target.operands.size();
  if (!IsIterable(value)) {
    return TypeError(StrCat("cannot unpack non-iterable ", value.TypeName(), " object"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> walk, Iterate(rt_, value));
  std::vector<Value> items(wanted);
  for (size_t i = 0; i <= wanted; ++i) {
    Value item;
    ASSIGN_OR_RETURN(const bool found, walk->Next(rt_, &item));
    if (found != (i < wanted)) {
      return TypeError(
          found ? StrCat("too many values to unpack (expected ", wanted, ")")
                : StrCat("not enough values to unpack (expected ", wanted, ", got ", i, ")"));
    }
    if (found) items[i] = std::move(item);
  }
  for (size_t i = 0; i < wanted; ++i) {
    RETURN_IF_ERROR(Assign(*target.operands[i], std::move(items[i])));
  }
  return OkStatus();
}

// The value that assigning to `target` took apart.
StatusOr<Value> Interpreter::Reassemble(const Expr& target) {
  if (target.kind == ExprKind::kName) return Slot(target.ref);
  std::vector<Value> items;
  for (const ExprPtr& item : target.operands) {
    ASSIGN_OR_RETURN(items.emplace_back(), Reassemble(*item));
  }
  return rt_.NewTuple(std::move(items));
}

}  // namespace flotilla::jinja
