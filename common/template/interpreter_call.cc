#include <algorithm>
#include <memory>
#include <utility>

#include "common/template/compare.h"
#include "common/template/interpreter.h"

namespace flotilla::jinja {
namespace {

// Removes and returns the argument `name`; missing if it was not given.
Value TakeNamed(std::string_view name, CallArgs* args) {
  const auto found = std::find_if(args->named.begin(), args->named.end(),
                                  [name](const auto& arg) { return arg.first == name; });
  if (found == args->named.end()) return Value();
  Value value = std::move(found->second);
  args->named.erase(found);
  return value;
}

std::string NameOf(const MacroDef& macro) {
  return macro.name.empty() ? "None" : StrCat("'", macro.name, "'");
}

}  // namespace

// `caller`, if there is one, is passed along as a keyword argument.
StatusOr<Value> Interpreter::CallExpr(const Expr& expr, const Value* caller) {
  ASSIGN_OR_RETURN(const Value callee, Eval(*expr.operands[0]));
  ASSIGN_OR_RETURN(CallArgs args, EvalArgs(*expr.args));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  switch (callee.kind()) {
    case Kind::kFunction: {
      const Function& function = callee.As<Function>();
      return CallBuiltin(rt_, *function.builtin, function.self, args);
    }
    case Kind::kMacro: {
      const Macro& macro = callee.As<Macro>();
      return CallMacro(*macro.def, macro.outer, std::move(args));
    }
    case Kind::kUndefined:
      return TypeError(callee.undefined_message());
    case Kind::kLoop:
      return TypeError("The loop must have the 'recursive' marker to be called recursively.");
    default:
      return TypeError(StrCat("'", callee.TypeName(), "' object is not callable"));
  }
}

StatusOr<CallArgs> Interpreter::EvalArgs(const Arguments& args) {
  CallArgs out;
  ASSIGN_OR_RETURN(out.positional, EvalAll(args.positional));
  if (args.star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Eval(*args.star));
    ASSIGN_OR_RETURN(std::vector<Value> items, ToVector(rt_, star));
    RETURN_IF_ERROR(rt_.Charge(items.size() * sizeof(Value)));
    std::move(items.begin(), items.end(), std::back_inserter(out.positional));
  }
  out.named.reserve(args.named.size());
  for (const auto& [name, expr] : args.named) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    out.named.emplace_back(name, std::move(value));
  }
  if (args.star_star != nullptr) {
    ASSIGN_OR_RETURN(const Value mapping, Eval(*args.star_star));
    RETURN_IF_ERROR(SpreadNamed(mapping, &out));
  }
  return out;
}

Status Interpreter::SpreadNamed(const Value& mapping, CallArgs* args) {
  if (!mapping.is_dict()) return TypeError("argument after ** must be a mapping");
  const size_t named = args->named.size();
  for (const Dict::Entry& entry : mapping.dict().entries()) {
    RETURN_IF_ERROR(rt_.Step(static_cast<int64_t>(named) + 1));
    if (!entry.key.is_str()) return TypeError("keywords must be strings");
    RETURN_IF_ERROR(rt_.Charge(entry.key.text().size() + sizeof(Value)));
    for (size_t i = 0; i < named; ++i) {
      if (args->named[i].first != entry.key.text()) continue;
      return TypeError(StrCat("got multiple values for keyword argument '", entry.key.text(), "'"));
    }
    args->named.emplace_back(entry.key.text(), entry.value);
  }
  return OkStatus();
}

StatusOr<Value> Interpreter::CallMacro(const MacroDef& macro, Activation* outer, CallArgs args) {
  const size_t slots = static_cast<size_t>(macro.num_slots);
  RETURN_IF_ERROR(rt_.Step(1 + static_cast<int64_t>(slots / 8)));
  RETURN_IF_ERROR(rt_.Charge(sizeof(Activation) + slots * sizeof(Value)));
  const auto activation = std::make_shared<Activation>(slots, outer);
  std::string text;
  Activation* const caller_frame = std::exchange(frame_, activation.get());
  std::string* const caller_out = std::exchange(out_, &text);
  const auto run = [&]() -> Status {
    RETURN_IF_ERROR(EnterScope(macro.scope));
    RETURN_IF_ERROR(BindArguments(macro, std::move(args), activation.get()));
    RETURN_IF_ERROR(FillDefaults(macro));
    return Exec(macro.body).status();
  };
  const Status status = run();
  frame_ = caller_frame;
  out_ = caller_out;
  RETURN_IF_ERROR(status);
  return rt_.NewStr(std::move(text));
}

// jinja2's Macro.__call__.
Status Interpreter::BindArguments(const MacroDef& macro, CallArgs args, Activation* activation) {
  const size_t given = std::min(args.positional.size(), macro.params.size());
  bool caller_found = macro.explicit_caller && given == macro.params.size();
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const Expr& param = *macro.params[i];
    Value& slot = activation->slots[static_cast<size_t>(param.ref.slot)];
    if (i < given) {
      slot = args.positional[i];
      continue;
    }
    RETURN_IF_ERROR(rt_.Step(1 + static_cast<int64_t>(args.named.size())));
    slot = TakeNamed(param.name, &args);
    caller_found = caller_found || param.name == "caller";
  }
  if (macro.varargs_slot < 0 && args.positional.size() > macro.params.size()) {
    return TypeError(StrCat("macro ", NameOf(macro), " takes not more than ", macro.params.size(),
                            " argument(s)"));
  }
  args.positional.erase(args.positional.begin(),
                        args.positional.begin() + static_cast<std::ptrdiff_t>(given));
  return BindSpecial(macro, std::move(args), caller_found, activation);
}

// What is left of the arguments goes to caller, kwargs and varargs.
Status Interpreter::BindSpecial(const MacroDef& macro, CallArgs args, bool caller_found,
                                Activation* activation) {
  const auto slot = [activation](int i) -> Value& {
    return activation->slots[static_cast<size_t>(i)];
  };
  if (macro.caller_slot >= 0 && !caller_found) {
    if (macro.explicit_caller) return TypeError("the argument 'caller' was given by position");
    Value caller = TakeNamed("caller", &args);
    if (caller.is_missing() || caller.is_none()) {
      ASSIGN_OR_RETURN(caller, rt_.NewUndefined("No caller defined"));
    }
    slot(macro.caller_slot) = std::move(caller);
  }
  if (macro.kwargs_slot >= 0) {
    Dict kwargs;
    for (auto& [name, value] : args.named) {
      ASSIGN_OR_RETURN(Value key, rt_.NewStr(name));
      kwargs.Set(std::move(key), std::move(value));
    }
    ASSIGN_OR_RETURN(slot(macro.kwargs_slot), rt_.NewDict(std::move(kwargs)));
  } else if (!args.named.empty()) {
    return TypeError(StrCat("macro ", NameOf(macro), " takes no keyword argument '",
                            args.named.front().first, "'"));
  }
  if (macro.varargs_slot >= 0) {
    ASSIGN_OR_RETURN(slot(macro.varargs_slot), rt_.NewTuple(std::move(args.positional)));
  }
  return OkStatus();
}

Status Interpreter::FillDefaults(const MacroDef& macro) {
  const size_t without_default = macro.params.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const Expr& param = *macro.params[i];
    if (!Slot(param.ref).is_missing()) continue;
    Value value;
    if (i < without_default) {
      ASSIGN_OR_RETURN(value,
                       rt_.NewUndefined(StrCat("parameter '", param.name, "' was not provided")));
    } else {
      ASSIGN_OR_RETURN(value, Eval(*macro.defaults[i - without_default]));
    }
    Slot(param.ref) = std::move(value);
  }
  return OkStatus();
}

}  // namespace flotilla::jinja
