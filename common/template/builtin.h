// Filters, tests, global functions and methods: all are rows of tables, called in one way.
//
// Threads: tables are constants; a Call belongs to one rendering.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// One call, arguments already matched to parameters.
struct Call {
  Runtime& rt;
  const Value& self;              // what is filtered, tested, or whose method it is
  std::span<const Value> params;  // one for each parameter; missing where nothing was given
  const CallArgs& all;            // everything, for a Builtin that takes any arguments

  const Value& arg(size_t i) const { return params[i]; }
  bool given(size_t i) const { return !params[i].is_missing(); }
};

using BuiltinFn = StatusOr<Value> (*)(const Call& call);

// `params` names the parameters behind the filtered value, separated by spaces; "-" is one that has
// no name for the caller (Python's positional-only), and "*" alone takes any arguments unmatched.
// The first `required` of them must be given.
struct Builtin {
  std::string_view name;
  BuiltinFn fn;
  std::string_view params;
  int required = 0;
};

StatusOr<Value> CallBuiltin(Runtime& rt, const Builtin& builtin, const Value& self,
                            const CallArgs& args);

// Null if there is none of that name.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindGlobal(std::string_view name);

// Rows whose name equals `name`; null if none does.
const Builtin* FindIn(std::span<const Builtin> table, std::string_view name);

// The tables, by file.
std::span<const Builtin> TextFilters();      // filters_text.cc
std::span<const Builtin> SequenceFilters();  // filters_sequence.cc
std::span<const Builtin> SelectFilters();    // filters_select.cc
std::span<const Builtin> ValueFilters();     // filters_value.cc
std::span<const Builtin> Tests();            // jinja_tests.cc
std::span<const Builtin> Globals();          // functions.cc
std::span<const Builtin> StrMethods();       // methods_str.cc
std::span<const Builtin> StrSplitMethods();  // methods_str_split.cc
std::span<const Builtin> DictMethods();      // methods_container.cc
std::span<const Builtin> ListMethods();      // of lists and tuples
std::span<const Builtin> LoopMethods();

// How to get at arguments. Each fails as Python does if the type is wrong.
StatusOr<int64_t> ToInt(const Value& value);  // __index__: int or bool
StatusOr<int64_t> IntArg(const Call& call, size_t i, int64_t default_value);
StatusOr<std::string_view> TextArg(const Call& call, size_t i);  // must be given, must be a str

}  // namespace flotilla::jinja
