#include "common/template/names.h"

namespace flotilla::jinja {
namespace {

class Finder {
 public:
  explicit Finder(std::string_view name) : name_(name) {}

  FirstUse Visit(const Block& body) const {
    for (const Stmt& stmt : body) {
      const FirstUse use = Visit(stmt);
      if (use != FirstUse::kNone) return use;
    }
    return FirstUse::kNone;
  }

 private:
  template <typename... Parts>
  FirstUse FirstOf(const Parts&... parts) const {
    FirstUse use = FirstUse::kNone;
    (void)(((use = Visit(parts)) != FirstUse::kNone) || ...);
    return use;
  }

  FirstUse Visit(const ExprPtr& expr) const {
    if (expr == nullptr) return FirstUse::kNone;
    if (expr->kind == ExprKind::kName && expr->name == name_) {
      return expr->stores ? FirstUse::kStore : FirstUse::kLoad;
    }
    const FirstUse use = Visit(expr->operands);
    return use != FirstUse::kNone || expr->args == nullptr ? use : Visit(*expr->args);
  }

  FirstUse Visit(const std::vector<ExprPtr>& exprs) const {
    for (const ExprPtr& expr : exprs) {
      const FirstUse use = Visit(expr);
      if (use != FirstUse::kNone) return use;
    }
    return FirstUse::kNone;
  }

  FirstUse Visit(const Arguments& args) const {
    FirstUse use = Visit(args.positional);
    for (size_t i = 0; i < args.named.size() && use == FirstUse::kNone; ++i) {
      use = Visit(args.named[i].second);
    }
    return use != FirstUse::kNone ? use : FirstOf(args.star, args.star_star);
  }

  FirstUse Visit(const std::vector<Stmt::Branch>& branches) const {
    for (const Stmt::Branch& branch : branches) {
      const FirstUse use = FirstOf(branch.test, branch.body);
      if (use != FirstUse::kNone) return use;
    }
    return FirstUse::kNone;
  }

  FirstUse Visit(const Stmt& stmt) const {
    switch (stmt.kind) {
      case StmtKind::kFor:
        return FirstOf(stmt.target, stmt.expr, stmt.body, stmt.otherwise, stmt.test);
      case StmtKind::kFilterBlock:
        return FirstOf(stmt.body, stmt.expr);
      case StmtKind::kMacro:
      case StmtKind::kCallBlock:
        return FirstOf(stmt.expr, stmt.macro->params, stmt.macro->defaults, stmt.macro->body);
      default:
        return FirstOf(stmt.target, stmt.targets, stmt.expr, stmt.exprs, stmt.branches, stmt.body,
                       stmt.otherwise);
    }
  }

  const std::string_view name_;
};

}  // namespace

FirstUse FindFirstUse(const Block& body, std::string_view name) { return Finder(name).Visit(body); }

}  // namespace flotilla::jinja
