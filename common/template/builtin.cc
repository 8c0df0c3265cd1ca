#include "common/template/builtin.h"

#include <algorithm>
#include <array>
#include <map>

namespace flotilla::jinja {
namespace {

constexpr size_t kMaxParams = 5;

// The parameters' names; returns how many there are.
size_t SplitParams(std::string_view params, std::array<std::string_view, kMaxParams>* names) {
  size_t count = 0;
  while (!params.empty()) {
    const size_t space = std::min(params.find(' '), params.size());
    (*names)[count++] = params.substr(0, space);
    params.remove_prefix(std::min(space + 1, params.size()));
  }
  return count;
}

// Arguments → parameters, as a Python call does it.
Status Match(const Builtin& builtin, const CallArgs& args, std::span<const std::string_view> names,
             std::span<Value> params) {
  if (args.positional.size() > names.size()) {
    return TypeError(StrCat(builtin.name, "() takes at most ", names.size(), " arguments (",
                            args.positional.size(), " given)"));
  }
  std::copy(args.positional.begin(), args.positional.end(), params.begin());
  for (const auto& [name, value] : args.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return TypeError(StrCat(builtin.name, "() got an unexpected keyword argument '", name, "'"));
    }
    Value& param = params[static_cast<size_t>(found - names.begin())];
    if (!param.is_missing()) {
      return TypeError(StrCat(builtin.name, "() got multiple values for argument '", name, "'"));
    }
    param = value;
  }
  for (int i = 0; i < builtin.required; ++i) {
    if (params[static_cast<size_t>(i)].is_missing()) {
      return TypeError(StrCat(builtin.name, "() misses a required argument"));
    }
  }
  return OkStatus();
}

using Table = std::map<std::string_view, const Builtin*>;

Table MakeTable(std::initializer_list<std::span<const Builtin>> parts) {
  Table table;
  for (const auto& part : parts) {
    for (const Builtin& builtin : part) table.emplace(builtin.name, &builtin);
  }
  return table;
}

const Builtin* Find(const Table& table, std::string_view name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace

StatusOr<Value> CallBuiltin(Runtime& rt, const Builtin& builtin, const Value& self,
                            const CallArgs& args) {
  RETURN_IF_ERROR(rt.Step());
  if (builtin.params == "*") return builtin.fn({rt, self, {}, args});
  std::array<std::string_view, kMaxParams> names;
  std::array<Value, kMaxParams> params;
  const size_t count = SplitParams(builtin.params, &names);
  RETURN_IF_ERROR(Match(builtin, args, std::span(names).first(count), params));
  return builtin.fn({rt, self, std::span<const Value>(params).first(count), args});
}

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [name](const Builtin& builtin) { return builtin.name == name; });
  return found == table.end() ? nullptr : &*found;
}

const Builtin* FindFilter(std::string_view name) {
  static const Table* const table =
      new Table(MakeTable({TextFilters(), SequenceFilters(), SelectFilters(), ValueFilters()}));
  return Find(*table, name);
}

const Builtin* FindTest(std::string_view name) {
  static const Table* const table = new Table(MakeTable({Tests()}));
  return Find(*table, name);
}

const Builtin* FindGlobal(std::string_view name) {
  static const Table* const table = new Table(MakeTable({Globals()}));
  return Find(*table, name);
}

StatusOr<int64_t> ToInt(const Value& value) {
  if (value.is_integral()) return value.int_value();
  if (value.is_undefined()) return TypeError(value.undefined_message());
  return TypeError(StrCat("'", value.TypeName(), "' object cannot be interpreted as an integer"));
}

StatusOr<int64_t> IntArg(const Call& call, size_t i, int64_t default_value) {
  if (!call.given(i)) return default_value;
  return ToInt(call.arg(i));
}

StatusOr<std::string_view> TextArg(const Call& call, size_t i) {
  const Value& value = call.arg(i);
  if (!value.is_str()) {
    return TypeError(StrCat("must be str, not ", value.TypeName()));
  }
  return value.text();
}

}  // namespace flotilla::jinja
