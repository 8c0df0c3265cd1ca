#include "common/template/resolver.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/template/builtin.h"
#include "common/template/names.h"

namespace flotilla::jinja {
namespace {

// The variables of one scope, jinja2's Symbols. Filled by Analyze before anything in it is bound.
class Symbols {
 public:
  // A scope within a function, or (macro ≠ null) the scope of a function's own.
  Symbols(const Symbols* parent, Scope* scope, MacroDef* macro)
      : parent_(parent),
        scope_(scope),
        function_(macro != nullptr || parent == nullptr ? macro : parent->function_),
        function_depth_(parent == nullptr  ? 0
                        : macro != nullptr ? parent->function_depth_ + 1
                                           : parent->function_depth_) {}

  void DeclareParameter(const std::string& name) {
    stores_.insert(name);
    Define(name)->origin.reset();
  }

  void Load(const std::string& name) {
    if (!Find(name, nullptr)) SetOrigin(name, ScopeVariable::From::kContext);
  }

  // `in_branch`: whether the assignment may be skipped because it stands in an `if`.
  void Store(const std::string& name, bool in_branch) {
    if (!stores_.insert(name).second) return;
    VarRef outer;
    if (parent_ != nullptr && parent_->Find(name, this, &outer)) {
      SetOrigin(name, ScopeVariable::From::kOuter, outer);
    } else if (in_branch) {
      SetOrigin(name, ScopeVariable::From::kContext);
    } else if (!variables_.contains(name)) {
      SetOrigin(name, ScopeVariable::From::kUnset);
    }
  }

  // After the last of the above: tells the scope what to do when it is entered.
  void Publish() {
    for (auto& [name, variable] : variables_) {
      if (variable.origin.has_value()) scope_->variables.push_back(*std::move(variable.origin));
    }
  }

  VarRef Ref(const std::string& name) const {
    VarRef ref;
    CHECK(Find(name, this, &ref));
    return ref;
  }
  int Slot(const std::string& name) const { return variables_.at(name).slot; }

 private:
  struct Variable {
    int slot;
    std::optional<ScopeVariable> origin;  // none: a parameter
  };

  // Where `name` is, as seen from the function of `viewer`.
  bool Find(const std::string& name, const Symbols* viewer, VarRef* ref = nullptr) const {
    for (const Symbols* s = this; s != nullptr; s = s->parent_) {
      const auto found = s->variables_.find(name);
      if (found == s->variables_.end()) continue;
      if (ref != nullptr) *ref = {viewer->function_depth_ - s->function_depth_, found->second.slot};
      return true;
    }
    return false;
  }

  Variable* Define(const std::string& name) {
    const auto [found, is_new] = variables_.try_emplace(name);
    if (is_new) found->second.slot = function_->num_slots++;
    return &found->second;
  }

  void SetOrigin(const std::string& name, ScopeVariable::From from, VarRef outer = {}) {
    Variable* variable = Define(name);
    variable->origin =
        ScopeVariable{.from = from, .slot = variable->slot, .outer = outer, .name = name};
  }

  const Symbols* parent_;
  Scope* scope_;
  MacroDef* function_;
  const int function_depth_;
  std::map<std::string, Variable> variables_;
  std::set<std::string> stores_;
};

// --- First pass over a scope: which variables it has. Does not look into scopes within it. ---

void AnalyzeExpr(const ExprPtr& expr, bool in_branch, Symbols* symbols);

void AnalyzeExprs(const std::vector<ExprPtr>& exprs, bool in_branch, Symbols* symbols) {
  for (const ExprPtr& expr : exprs) AnalyzeExpr(expr, in_branch, symbols);
}

void AnalyzeExpr(const ExprPtr& expr, bool in_branch, Symbols* symbols) {
  if (expr == nullptr) return;
  if (expr->kind == ExprKind::kName && expr->stores) {
    symbols->Store(expr->name, in_branch);
  } else if (expr->kind == ExprKind::kName || expr->kind == ExprKind::kNamespaceAttr) {
    symbols->Load(expr->name);
  }
  AnalyzeExprs(expr->operands, in_branch, symbols);
  if (expr->args == nullptr) return;
  AnalyzeExprs(expr->args->positional, in_branch, symbols);
  for (const auto& [name, value] : expr->args->named) AnalyzeExpr(value, in_branch, symbols);
  AnalyzeExpr(expr->args->star, in_branch, symbols);
  AnalyzeExpr(expr->args->star_star, in_branch, symbols);
}

void Analyze(const Block& body, bool in_branch, Symbols* symbols) {
  for (const Stmt& stmt : body) {
    switch (stmt.kind) {
      case StmtKind::kIf:
        for (const Stmt::Branch& branch : stmt.branches) {
          AnalyzeExpr(branch.test, in_branch, symbols);
          Analyze(branch.body, /*in_branch=*/true, symbols);
        }
        Analyze(stmt.otherwise, /*in_branch=*/true, symbols);
        break;
      case StmtKind::kMacro:
        symbols->Store(stmt.macro->name, in_branch);
        break;
      case StmtKind::kSetBlock:
        AnalyzeExpr(stmt.target, in_branch, symbols);
        break;
      case StmtKind::kFor:
        AnalyzeExpr(stmt.expr, in_branch, symbols);
        break;
      case StmtKind::kSet:
        AnalyzeExpr(stmt.expr, in_branch, symbols);
        AnalyzeExpr(stmt.target, in_branch, symbols);
        break;
      default:
        AnalyzeExpr(stmt.expr, in_branch, symbols);
        AnalyzeExprs(stmt.exprs, in_branch, symbols);
    }
  }
}

void DeclareTarget(const Expr& target, Symbols* symbols) {
  if (target.kind == ExprKind::kName) symbols->DeclareParameter(target.name);
  for (const ExprPtr& item : target.operands) DeclareTarget(*item, symbols);
}

ExprPtr CloneTarget(const Expr& target) {
  auto clone = std::make_unique<Expr>(target.kind, target.line);
  clone->name = target.name;
  clone->stores = target.stores;
  for (const ExprPtr& item : target.operands) clone->operands.push_back(CloneTarget(*item));
  return clone;
}

// --- Second pass: every name gets its place, every scope within its own first pass. ---

// `soft`: within an `if`, where an unknown filter is an error only when it is reached.
Status Bind(Block* body, bool soft, const Symbols& symbols);

Status BindExpr(const ExprPtr& expr, bool soft, const Symbols& symbols);

Status BindExprs(const std::vector<ExprPtr>& exprs, bool soft, const Symbols& symbols) {
  for (const ExprPtr& expr : exprs) RETURN_IF_ERROR(BindExpr(expr, soft, symbols));
  return OkStatus();
}

Status BindBuiltin(Expr* expr, bool soft) {
  const bool is_filter = expr->kind == ExprKind::kFilter;
  expr->builtin = is_filter ? FindFilter(expr->name) : FindTest(expr->name);
  if (expr->builtin != nullptr || soft) return OkStatus();
  return absl::InvalidArgumentError(StrCat(
      "line ", expr->line, ": No ", is_filter ? "filter" : "test", " named '", expr->name, "'"));
}

Status BindExpr(const ExprPtr& expr, bool soft, const Symbols& symbols) {
  if (expr == nullptr) return OkStatus();
  if (expr->kind == ExprKind::kName || expr->kind == ExprKind::kNamespaceAttr) {
    expr->ref = symbols.Ref(expr->name);
  } else if (expr->kind == ExprKind::kFilter || expr->kind == ExprKind::kTest) {
    RETURN_IF_ERROR(BindBuiltin(expr.get(), soft));
  }
  RETURN_IF_ERROR(BindExprs(expr->operands, soft || expr->kind == ExprKind::kCond, symbols));
  if (expr->args == nullptr) return OkStatus();
  RETURN_IF_ERROR(BindExprs(expr->args->positional, soft, symbols));
  for (const auto& [name, value] : expr->args->named) {
    RETURN_IF_ERROR(BindExpr(value, soft, symbols));
  }
  RETURN_IF_ERROR(BindExpr(expr->args->star, soft, symbols));
  return BindExpr(expr->args->star_star, soft, symbols);
}

Status BindFor(Stmt* loop, bool soft, const Symbols& symbols) {
  RETURN_IF_ERROR(BindExpr(loop->expr, soft, symbols));
  Symbols inner(&symbols, &loop->scope, nullptr);
  if (FindFirstUse(loop->body, "loop") == FirstUse::kLoad) {
    inner.DeclareParameter("loop");
    loop->loop_slot = inner.Slot("loop");
  }
  DeclareTarget(*loop->target, &inner);
  Analyze(loop->body, /*in_branch=*/false, &inner);
  inner.Publish();
  RETURN_IF_ERROR(BindExpr(loop->target, /*soft=*/false, inner));
  RETURN_IF_ERROR(Bind(&loop->body, /*soft=*/false, inner));
  if (loop->test != nullptr) {
    Symbols test(&symbols, &loop->test_scope, nullptr);
    loop->test_target = CloneTarget(*loop->target);
    DeclareTarget(*loop->test_target, &test);
    AnalyzeExpr(loop->test, /*in_branch=*/false, &test);
    test.Publish();
    RETURN_IF_ERROR(BindExpr(loop->test_target, /*soft=*/false, test));
    RETURN_IF_ERROR(BindExpr(loop->test, /*soft=*/false, test));
  }
  Symbols otherwise(&symbols, &loop->otherwise_scope, nullptr);
  Analyze(loop->otherwise, /*in_branch=*/false, &otherwise);
  otherwise.Publish();
  return Bind(&loop->otherwise, /*soft=*/false, otherwise);
}

int DeclareSpecial(const MacroDef& macro, const std::string& name, Symbols* symbols) {
  if (FindFirstUse(macro.body, name) != FirstUse::kLoad) return -1;
  symbols->DeclareParameter(name);
  return symbols->Slot(name);
}

Status BindFunction(MacroDef* macro, int line, const Symbols* outer) {
  Symbols symbols(outer, &macro->scope, macro);
  for (const ExprPtr& param : macro->params) symbols.DeclareParameter(param->name);
  AnalyzeExprs(macro->defaults, /*in_branch=*/false, &symbols);
  Analyze(macro->body, /*in_branch=*/false, &symbols);
  const auto has_param = [macro](std::string_view name) {
    return std::any_of(macro->params.begin(), macro->params.end(),
                       [name](const ExprPtr& param) { return param->name == name; });
  };
  if (outer != nullptr) {
    macro->explicit_caller = has_param("caller");
    macro->caller_slot = DeclareSpecial(*macro, "caller", &symbols);
    if (!has_param("kwargs")) macro->kwargs_slot = DeclareSpecial(*macro, "kwargs", &symbols);
    if (!has_param("varargs")) macro->varargs_slot = DeclareSpecial(*macro, "varargs", &symbols);
  }
  if (macro->explicit_caller && macro->caller_slot >= 0) {
    const size_t required = macro->params.size() - macro->defaults.size();
    for (size_t i = 0; i < required; ++i) {
      if (macro->params[i]->name != "caller") continue;
      return absl::InvalidArgumentError(
          StrCat("line ", line, ": the special argument 'caller' must have a default"));
    }
  }
  symbols.Publish();
  RETURN_IF_ERROR(BindExprs(macro->params, /*soft=*/false, symbols));
  RETURN_IF_ERROR(BindExprs(macro->defaults, /*soft=*/false, symbols));
  return Bind(&macro->body, /*soft=*/false, symbols);
}

// A block whose body is a scope of its own and may be followed by filters.
Status BindScopedBlock(Stmt* stmt, const Symbols& symbols) {
  Symbols inner(&symbols, &stmt->scope, nullptr);
  for (const ExprPtr& target : stmt->targets) DeclareTarget(*target, &inner);
  Analyze(stmt->body, /*in_branch=*/false, &inner);
  AnalyzeExpr(stmt->expr, /*in_branch=*/false, &inner);
  inner.Publish();
  RETURN_IF_ERROR(BindExprs(stmt->targets, /*soft=*/false, inner));
  RETURN_IF_ERROR(Bind(&stmt->body, /*soft=*/false, inner));
  return BindExpr(stmt->expr, /*soft=*/false, inner);
}

Status BindStmt(Stmt* stmt, bool soft, const Symbols& symbols) {
  switch (stmt->kind) {
    case StmtKind::kIf:
      for (Stmt::Branch& branch : stmt->branches) {
        RETURN_IF_ERROR(BindExpr(branch.test, /*soft=*/true, symbols));
        RETURN_IF_ERROR(Bind(&branch.body, /*soft=*/true, symbols));
      }
      return Bind(&stmt->otherwise, /*soft=*/true, symbols);
    case StmtKind::kFor:
      return BindFor(stmt, soft, symbols);
    case StmtKind::kMacro:
      stmt->ref = symbols.Ref(stmt->macro->name);
      return BindFunction(stmt->macro.get(), stmt->line, &symbols);
    case StmtKind::kCallBlock:
      RETURN_IF_ERROR(BindExpr(stmt->expr, soft, symbols));
      return BindFunction(stmt->macro.get(), stmt->line, &symbols);
    case StmtKind::kSetBlock:
      RETURN_IF_ERROR(BindExpr(stmt->target, soft, symbols));
      return BindScopedBlock(stmt, symbols);
    case StmtKind::kWith:
      RETURN_IF_ERROR(BindExprs(stmt->exprs, soft, symbols));
      return BindScopedBlock(stmt, symbols);
    case StmtKind::kFilterBlock:
      return BindScopedBlock(stmt, symbols);
    default:
      RETURN_IF_ERROR(BindExpr(stmt->target, soft, symbols));
      RETURN_IF_ERROR(BindExpr(stmt->expr, soft, symbols));
      return BindExprs(stmt->exprs, soft, symbols);
  }
}

Status Bind(Block* body, bool soft, const Symbols& symbols) {
  for (Stmt& stmt : *body) RETURN_IF_ERROR(BindStmt(&stmt, soft, symbols));
  return OkStatus();
}

}  // namespace

Status ResolveNames(MacroDef* root) { return BindFunction(root, /*line=*/1, nullptr); }

}  // namespace flotilla::jinja
