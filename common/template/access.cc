#include "common/template/access.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/template/builtin.h"
#include "common/template/compare.h"
#include "common/template/iterate.h"
#include "common/template/objects.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

template <size_t N>
bool IsOneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Methods that would change their object: jinja2's sandbox hides them.
constexpr std::string_view kListChangers[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChangers[] = {"clear", "pop", "popitem", "setdefault", "update"};
// What every dict has besides; hidden as well, but hides an item of that name.
constexpr std::string_view kDictInternals[] = {"__class__",
                                               "__class_getitem__",
                                               "__contains__",
                                               "__delattr__",
                                               "__delitem__",
                                               "__dir__",
                                               "__doc__",
                                               "__eq__",
                                               "__format__",
                                               "__ge__",
                                               "__getattribute__",
                                               "__getitem__",
                                               "__getstate__",
                                               "__gt__",
                                               "__hash__",
                                               "__init__",
                                               "__init_subclass__",
                                               "__ior__",
                                               "__iter__",
                                               "__le__",
                                               "__len__",
                                               "__lt__",
                                               "__ne__",
                                               "__new__",
                                               "__or__",
                                               "__reduce__",
                                               "__reduce_ex__",
                                               "__repr__",
                                               "__reversed__",
                                               "__ror__",
                                               "__setattr__",
                                               "__setitem__",
                                               "__sizeof__",
                                               "__str__",
                                               "__subclasshook__"};
// Python has these; this subset does not.
constexpr std::string_view kMissingOfStr[] = {"casefold",   "encode",       "escape",
                                              "format_map", "isidentifier", "maketrans",
                                              "striptags",  "translate",    "unescape"};
constexpr std::string_view kMissingOfNumbers[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
constexpr std::string_view kMissingOfDict[] = {"fromkeys"};
constexpr std::string_view kMissingOfViews[] = {"isdisjoint", "mapping"};
constexpr std::string_view kMissingOfRange[] = {"count", "index"};
constexpr std::string_view kMissingOfGenerators[] = {"close", "send", "throw"};

StatusOr<Value> Unsafe(Runtime& rt, const Value& value, std::string_view name) {
  return rt.NewUndefined(StrCat("access to attribute ", ReprOfText(name), " of '", value.TypeName(),
                                "' object is unsafe."));
}

Status NotInSubset(const Value& value, std::string_view name) {
  return NotSupported(StrCat("the attribute '", name, "' of a ", value.TypeName()));
}

std::string ObjectName(const Value& value) {
  return value.is_none() ? "None" : StrCat(value.TypeName(), " object");
}

StatusOr<Value> Method(Runtime& rt, const Value& self, const Builtin* builtin) {
  RETURN_IF_ERROR(rt.Charge(sizeof(Function)));
  return Value(Kind::kFunction, std::make_shared<Function>(builtin, self));
}

StatusOr<Value> StrAttribute(Runtime& rt, const Value& self, std::string_view name) {
  const Builtin* method = FindIn(StrMethods(), name);
  if (method == nullptr) method = FindIn(StrSplitMethods(), name);
  if (method != nullptr) return Method(rt, self, method);
  if (IsOneOf(name, kMissingOfStr)) return NotInSubset(self, name);
  return Value();
}

StatusOr<Value> ListAttribute(Runtime& rt, const Value& self, std::string_view name) {
  const bool list = self.is(Kind::kList);
  if (list && IsOneOf(name, kListChangers)) return Unsafe(rt, self, name);
  const Builtin* method = FindIn(ListMethods(), name);
  if (method == nullptr || (!list && name == "copy")) return Value();
  return Method(rt, self, method);
}

StatusOr<Value> DictAttribute(Runtime& rt, const Value& self, std::string_view name) {
  if (const Builtin* method = FindIn(DictMethods(), name)) return Method(rt, self, method);
  if (IsOneOf(name, kDictChangers) || IsOneOf(name, kDictInternals)) {
    return Unsafe(rt, self, name);
  }
  if (IsOneOf(name, kMissingOfDict)) return NotInSubset(self, name);
  return Value();
}

StatusOr<Value> LoopAttribute(Runtime& rt, const Value& self, std::string_view name) {
  LoopContext& loop = self.As<LoopContext>();
  const int64_t index0 = loop.index0();
  if (name == "index") return Value::Int(index0 + 1);
  if (name == "index0") return Value::Int(index0);
  if (name == "first") return Value::Bool(index0 == 0);
  if (name == "previtem") return loop.PreviousItem(rt);
  if (name == "nextitem") return loop.NextItem(rt);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "last") {
    ASSIGN_OR_RETURN(const bool last, loop.IsLast(rt));
    return Value::Bool(last);
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    ASSIGN_OR_RETURN(const int64_t length, loop.Length(rt));
    return Value::Int(name == "length"     ? length
                      : name == "revindex" ? length - index0
                                           : length - index0 - 1);
  }
  if (const Builtin* method = FindIn(LoopMethods(), name)) return Method(rt, self, method);
  return Value();
}

StatusOr<Value> MacroAttribute(Runtime& rt, const MacroDef& macro, std::string_view name) {
  if (name == "name") return macro.name.empty() ? Value::None() : rt.NewStr(macro.name);
  if (name == "catch_kwargs") return Value::Bool(macro.kwargs_slot >= 0);
  if (name == "catch_varargs") return Value::Bool(macro.varargs_slot >= 0);
  if (name == "caller") return Value::Bool(macro.caller_slot >= 0);
  if (name != "arguments") return Value();
  std::vector<Value> names;
  for (const ExprPtr& param : macro.params) {
    ASSIGN_OR_RETURN(names.emplace_back(), rt.NewStr(param->name));
  }
  return rt.NewTuple(std::move(names));
}

StatusOr<Value> RangeAttribute(const Value& self, std::string_view name) {
  if (name == "start") return Value::Int(self.range().start);
  if (name == "stop") return Value::Int(self.range().stop);
  if (name == "step") return Value::Int(self.range().step);
  if (IsOneOf(name, kMissingOfRange)) return NotInSubset(self, name);
  return Value();
}

StatusOr<Value> NamespaceAttribute(Runtime& rt, const Value& self, std::string_view name) {
  const Value* found = self.As<Namespace>().attributes.Find(name);
  if (found == nullptr) return Value();
  if (!name.empty() && name[0] == '_') return Unsafe(rt, self, name);
  return *found;
}

// Python's getattr(): missing if there is no such attribute.
StatusOr<Value> PythonAttribute(Runtime& rt, const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kUndefined:
      return TypeError(self.undefined_message());
    case Kind::kStr:
      return StrAttribute(rt, self, name);
    case Kind::kList:
    case Kind::kTuple:
      return ListAttribute(rt, self, name);
    case Kind::kDict:
      return DictAttribute(rt, self, name);
    case Kind::kNamespace:
      return NamespaceAttribute(rt, self, name);
    case Kind::kLoop:
      return LoopAttribute(rt, self, name);
    case Kind::kMacro:
      return MacroAttribute(rt, *self.As<Macro>().def, name);
    case Kind::kRange:
      return RangeAttribute(self, name);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kWideInt:
    case Kind::kFloat:
      return IsOneOf(name, kMissingOfNumbers) ? StatusOr<Value>(NotInSubset(self, name)) : Value();
    case Kind::kDictView:
      return IsOneOf(name, kMissingOfViews) ? StatusOr<Value>(NotInSubset(self, name)) : Value();
    case Kind::kGenerator:
      return IsOneOf(name, kMissingOfGenerators) ? StatusOr<Value>(NotInSubset(self, name))
                                                 : Value();
    default:
      return Value();
  }
}

StatusOr<Value> NoSuchAttribute(Runtime& rt, const Value& value, std::string_view name) {
  return rt.NewUndefined(StrCat("'", ObjectName(value), "' has no attribute ", ReprOfText(name)));
}

// Python's negative indices; nothing if out of range.
std::optional<int64_t> Position(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return index;
}

StatusOr<Value> CharAt(Runtime& rt, const Value& value, size_t index) {
  const std::string_view text = value.text();
  size_t begin = index;
  if (value.str().num_chars != text.size()) {
    RETURN_IF_ERROR(rt.StepBytes(text.size()));
    begin = ByteOfChar(text, index);
  }
  size_t end = begin;
  NextChar(text, &end);
  return rt.NewStr(text.substr(begin, end - begin), value.is_markup());
}

// value[index] of something ordered; missing if out of range.
StatusOr<Value> ItemAt(Runtime& rt, const Value& value, int64_t index) {
  ASSIGN_OR_RETURN(const int64_t length, Length(rt, value));
  const auto position = Position(index, length);
  if (!position.has_value()) return Value();
  if (value.is_str()) return CharAt(rt, value, static_cast<size_t>(*position));
  if (value.is(Kind::kRange)) return Value::Int(value.range().at(*position));
  return value.items()[static_cast<size_t>(*position)];
}

bool IsOrdered(const Value& value) {
  return value.is_str() || value.is_sequence() || value.is(Kind::kRange);
}

// Python's obj[key]; missing where that raises TypeError or LookupError.
StatusOr<Value> PythonItem(Runtime& rt, const Value& value, const Value& key) {
  if (value.is_undefined()) return TypeError(value.undefined_message());
  if (value.is_dict()) {
    const StatusOr<const Value*> found = FindKey(rt, value.dict(), key);
    if (!found.ok() && !absl::IsInvalidArgument(found.status())) return found.status();
    return found.ok() && *found != nullptr ? **found : Value();
  }
  if (IsOrdered(value) && key.is_integral()) return ItemAt(rt, value, key.int_value());
  return Value();
}

// The numbers that a slice of a sequence of `length` walks over.
struct SliceIndices {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t count;
};

StatusOr<int64_t> SliceBound(const Value& bound, int64_t default_value) {
  if (bound.is_none()) return default_value;
  if (!bound.is_integral()) {
    return TypeError("slice indices must be integers or None or have an __index__ method");
  }
  return bound.int_value();
}

// CPython's PySlice_Unpack and PySlice_AdjustIndices.
StatusOr<SliceIndices> Adjust(const Value& start, const Value& stop, const Value& step,
                              int64_t length) {
  SliceIndices out{};
  ASSIGN_OR_RETURN(out.step, SliceBound(step, 1));
  if (out.step == 0) return TypeError("slice step cannot be zero");
  out.step = std::max(out.step, -INT64_MAX);
  const bool back = out.step < 0;
  const auto clamp = [length, back](int64_t bound) {
    if (bound < 0) bound += length;
    if (bound < 0) return int64_t{back ? -1 : 0};
    if (bound >= length) return back ? length - 1 : length;
    return bound;
  };
  ASSIGN_OR_RETURN(const int64_t from, SliceBound(start, back ? INT64_MAX : 0));
  out.start = clamp(from);
  out.stop = back ? -1 : length;
  if (!stop.is_none()) {
    ASSIGN_OR_RETURN(const int64_t to, SliceBound(stop, 0));
    out.stop = clamp(to);
  }
  if (back) {
    out.count = out.stop < out.start ? (out.start - out.stop - 1) / -out.step + 1 : 0;
  } else {
    out.count = out.start < out.stop ? (out.stop - out.start - 1) / out.step + 1 : 0;
  }
  return out;
}

StatusOr<Value> SliceOfText(Runtime& rt, const Value& value, const SliceIndices& indices) {
  const std::string_view text = value.text();
  RETURN_IF_ERROR(rt.StepBytes(text.size()));
  const bool ascii = value.str().num_chars == text.size();
  const auto byte_of = [&](int64_t i) {
    return ascii ? static_cast<size_t>(i) : ByteOfChar(text, static_cast<size_t>(i));
  };
  if (indices.count == 0) return rt.NewStr(std::string(), value.is_markup());
  if (indices.step == 1) {
    const size_t begin = byte_of(indices.start);
    const std::string_view rest = text.substr(begin);
    const size_t size = ascii ? static_cast<size_t>(indices.count)
                              : ByteOfChar(rest, static_cast<size_t>(indices.count));
    return rt.NewStr(rest.substr(0, size), value.is_markup());
  }
  RETURN_IF_ERROR(rt.Charge(value.str().num_chars * sizeof(size_t)));
  std::vector<size_t> starts;
  starts.reserve(value.str().num_chars);
  for (size_t i = 0; i < text.size(); NextChar(text, &i)) starts.push_back(i);
  std::string out;
  for (int64_t i = 0; i < indices.count; ++i) {
    size_t end = starts[static_cast<size_t>(indices.start + i * indices.step)];
    const size_t begin = end;
    NextChar(text, &end);
    out.append(text.substr(begin, end - begin));
  }
  return rt.NewStr(std::move(out), value.is_markup());
}

StatusOr<Value> SliceOfRange(Runtime& rt, const Range& range, const SliceIndices& indices) {
  int64_t step = 0;
  int64_t start = 0;
  int64_t stop = 0;
  if (__builtin_mul_overflow(range.step, indices.step, &step) ||
      __builtin_mul_overflow(indices.start, range.step, &start) ||
      __builtin_add_overflow(start, range.start, &start) ||
      __builtin_mul_overflow(indices.stop, range.step, &stop) ||
      __builtin_add_overflow(stop, range.start, &stop)) {
    return NotSupported("a range beyond 64 bits");
  }
  RETURN_IF_ERROR(rt.Charge(sizeof(Range)));
  return Value(Kind::kRange, std::make_shared<Range>(start, stop, step));
}

}  // namespace

StatusOr<Value> GetAttribute(Runtime& rt, const Value& value, std::string_view name) {
  ASSIGN_OR_RETURN(Value attribute, PythonAttribute(rt, value, name));
  if (!attribute.is_missing()) return attribute;
  if (value.is_dict()) {
    RETURN_IF_ERROR(rt.StepBytes(name.size()));
    const Value* item = value.dict().Find(name);
    if (item != nullptr) return *item;
  }
  return NoSuchAttribute(rt, value, name);
}

StatusOr<Value> GetItem(Runtime& rt, const Value& value, const Value& key) {
  ASSIGN_OR_RETURN(Value item, PythonItem(rt, value, key));
  if (!item.is_missing()) return item;
  if (key.is_str()) {
    ASSIGN_OR_RETURN(item, PythonAttribute(rt, value, key.text()));
    if (!item.is_missing()) return item;
    return NoSuchAttribute(rt, value, key.text());
  }
  if (key.is_number()) {
    ASSIGN_OR_RETURN(const std::string text, ToText(rt, key));
    return rt.NewUndefined(StrCat(ObjectName(value), " has no element ", text));
  }
  return rt.NewUndefined(StrCat(ObjectName(value), " has no such element"));
}

StatusOr<Value> GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
                         const Value& step) {
  if (value.is_undefined()) return TypeError(value.undefined_message());
  if (!IsOrdered(value)) {
    return TypeError(StrCat("'", value.TypeName(), "' object can't be sliced"));
  }
  ASSIGN_OR_RETURN(const int64_t length, Length(rt, value));
  ASSIGN_OR_RETURN(const SliceIndices indices, Adjust(start, stop, step, length));
  if (value.is_str()) return SliceOfText(rt, value, indices);
  if (value.is(Kind::kRange)) return SliceOfRange(rt, value.range(), indices);
  RETURN_IF_ERROR(rt.Step(indices.count));
  std::vector<Value> items;
  for (int64_t i = 0; i < indices.count; ++i) {
    items.push_back(value.items()[static_cast<size_t>(indices.start + i * indices.step)]);
  }
  return value.is(Kind::kList) ? rt.NewList(std::move(items)) : rt.NewTuple(std::move(items));
}

}  // namespace flotilla::jinja
