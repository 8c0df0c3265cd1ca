// The syntax tree of a template, with what the resolver adds to it.
//
// Trees are at most ChatTemplateLimits::max_nesting high, so walking and destroying them may
// recurse. Threads: unchanged after the resolver, then read by any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/template/value.h"

namespace flotilla::jinja {

struct Builtin;
struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;

// Where a variable is while rendering: a slot of the function `hops` levels further out. Functions
// are the template itself, its macros and call blocks.
struct VarRef {
  int hops = 0;
  int slot = -1;
};

enum class ExprKind : uint8_t {
  kConst,          // value
  kName,           // name, ref
  kNamespaceAttr,  // as a target only: name.attribute, ref
  kTuple,          // operands
  kList,           // operands
  kDict,           // operands: key, value, key, value, …
  kAttr,           // operands[0].name
  kItem,           // operands[0][operands[1]]; operands[1] may be a kSlice
  kSlice,          // operands: start, stop, step; each may be null
  kCall,           // operands[0](args)
  kFilter,         // operands[0] | name(args); operands[0] is null in a block's filter
  kTest,           // operands[0] is name(args)
  kNeg,
  kPos,
  kNot,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kAnd,
  kOr,
  kConcat,   // operands, two or more
  kCompare,  // operands[0] comparisons[0] operands[1] comparisons[1] …
  kCond,     // operands: test, value if true, value if false (may be null)
};

enum class Comparison : uint8_t { kEq, kNe, kGt, kGtEq, kLt, kLtEq, kIn, kNotIn };

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *args
  ExprPtr star_star;  // **kwargs
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}

  ExprKind kind;
  int line;
  int height = 1;       // nodes on the longest way down
  bool stores = false;  // a kName that is assigned to
  std::string name;
  std::string attribute;
  Value value;
  std::vector<ExprPtr> operands;
  std::vector<Comparison> comparisons;
  std::unique_ptr<Arguments> args;  // kCall always; kFilter and kTest if there are any

  VarRef ref;
  const Builtin* builtin = nullptr;  // kFilter, kTest; null: there is none of that name
};

// What a variable of a scope is when the scope is entered.
struct ScopeVariable {
  enum class From : uint8_t {
    kUnset,    // set later, in the scope
    kOuter,    // a copy of an outer variable, which the scope then changes for itself
    kContext,  // the rendering's input or a global function of that name
  };
  From from;
  int slot;
  VarRef outer;
  std::string name;
};

struct Scope {
  std::vector<ScopeVariable> variables;
};

struct MacroDef {
  std::string name;               // empty: a call block's body
  std::vector<ExprPtr> params;    // kName
  std::vector<ExprPtr> defaults;  // of the last ones
  Block body;

  Scope scope;
  int num_slots = 0;
  // The special variables, where the body uses them; -1 where not.
  int caller_slot = -1;
  int kwargs_slot = -1;
  int varargs_slot = -1;
  bool explicit_caller = false;  // a parameter has the name "caller"
};

enum class StmtKind : uint8_t {
  kOutput,       // exprs
  kIf,           // branches, otherwise
  kFor,          // target, expr: what is walked, test, body, otherwise
  kSet,          // target, expr
  kSetBlock,     // target, body, expr: its filters or null
  kMacro,        // macro, ref
  kCallBlock,    // macro: the body, expr: the call; null: {% generation %}
  kFilterBlock,  // body, expr: the filters
  kWith,         // targets, exprs, body
  kBreak,
  kContinue,
};

struct Stmt {
  struct Branch {
    ExprPtr test;
    Block body;
  };

  Stmt(StmtKind k, int l) : kind(k), line(l) {}

  StmtKind kind;
  int line;
  ExprPtr target;
  std::vector<ExprPtr> targets;
  ExprPtr expr;
  ExprPtr test;
  ExprPtr test_target;  // kFor with a test: a target of the test's own, made by the resolver
  std::vector<ExprPtr> exprs;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
  std::unique_ptr<MacroDef> macro;

  VarRef ref;
  int loop_slot = -1;  // kFor: where the variable `loop` is, if the body uses it
  Scope scope;         // of body
  Scope test_scope;
  Scope otherwise_scope;  // kFor
};

}  // namespace flotilla::jinja
