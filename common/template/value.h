// A value of the template language: what Python would have there, with Python's distinctions (list
// and tuple, bool and int, str and Markup, the Undefined object).
//
// Values are cheap to copy and share what they point to; strings, lists, tuples, dicts, ranges are
// never changed after they were made. Integers that are computed with have 64 bits. Containers nest
// at most ChatTemplateLimits::max_value_depth deep (runtime.h makes them), so that whatever walks
// them, the destructor included, may recurse.
//
// Threads: a template's constants are read by all renderings; all else belongs to one rendering.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace flotilla::jinja {

enum class Kind : uint8_t {
  kMissing,  // no value at all: a variable not set yet, an argument not given
  kUndefined,
  kNone,
  kBool,
  kInt,
  kWideInt,  // an int from 2^63 to 2^64 - 1, as JSON may have it: shown and compared, not computed
             // with
  kFloat,
  kStr,
  kList,
  kTuple,
  kDict,
  kDictView,  // what dict.keys(), values() and items() return
  kRange,
  kNamespace,
  kLoop,  // the variable `loop`
  kMacro,
  kGenerator,  // may be walked once
  kFunction,   // a global function or an object's method
};

struct Object {
  virtual ~Object() = default;
};

struct Str : Object {
  Str(std::string t, bool m);
  std::string text;  // valid UTF-8
  size_t num_chars;
  bool markup;  // of the type Markup: `+` escapes what it is joined with
};

// Why a value is undefined: the message of the error that using it would be.
struct UndefinedInfo : Object {
  explicit UndefinedInfo(std::string m) : message(std::move(m)) {}
  std::string message;
};

struct List;
class Dict;
struct DictView;
struct Range;
struct Builtin;

class Value {
 public:
  Value() = default;
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool b);
  static Value Int(int64_t i);
  static Value WideInt(uint64_t i);  // above INT64_MAX
  static Value Float(double d);
  // Not counted in any budget: for constants. While rendering: Runtime::NewStr.
  static Value ConstantStr(std::string text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_str() const { return kind_ == Kind::kStr; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_integral() const {
    return kind_ == Kind::kInt || kind_ == Kind::kBool;
  }  // isinstance int
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  // Also one that can't be computed with.
  bool is_any_number() const { return is_number() || kind_ == Kind::kWideInt; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_markup() const { return is_str() && str().markup; }

  bool bool_value() const { return int_ != 0; }
  int64_t int_value() const { return int_; }  // also a bool's
  uint64_t wide_value() const { return static_cast<uint64_t>(int_); }
  double float_value() const { return float_; }
  double as_double() const { return is(Kind::kFloat) ? float_ : static_cast<double>(int_); }
  const Str& str() const { return As<Str>(); }
  std::string_view text() const { return str().text; }
  const List& list() const;  // of a list or tuple
  const std::vector<Value>& items() const;
  const Dict& dict() const;
  const DictView& view() const;
  const Range& range() const;
  const std::string& undefined_message() const { return As<UndefinedInfo>().message; }
  template <typename T>
  T& As() const {
    DCHECK(object_ != nullptr);
    return *static_cast<T*>(object_.get());
  }
  const std::shared_ptr<Object>& object() const { return object_; }

  // How deep containers nest in it: 0 for anything but a list, tuple, dict or view.
  int depth() const;
  // bool(value).
  bool Truthy() const;
  // type(value).__name__: "str", "NoneType", …
  std::string_view TypeName() const;
  // `is`: the same object, or the same None, True or False.
  bool SameAs(const Value& other) const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

// A list or a tuple.
struct List : Object {
  std::vector<Value> items;
  int depth = 1;
};

// Keeps the order in which keys were first set. compare.h finds and sets keys of any kind.
class Dict : public Object {
 public:
  struct Entry {
    Value key;
    Value value;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  const Value* Find(std::string_view key) const;
  void Set(Value string_key, Value value);
  void SetAt(size_t position, Value value);
  // `key` must not be in the dict.
  void Append(Value key, Value value);

 private:
  size_t Position(std::string_view key) const;  // size() if absent

  std::vector<Entry> entries_;
  // String keys to positions in entries_, once there are many; the views point into the keys.
  std::map<std::string_view, size_t> index_;
  bool indexed_ = false;
  int depth_ = 1;
};

struct DictView : Object {
  enum class Part : uint8_t { kKeys, kValues, kItems };
  DictView(Value d, Part p) : dict(std::move(d)), part(p) {}
  Value dict;
  Part part;
};

// A global function (self is missing) or an object's method.
struct Function : Object {
  Function(const Builtin* b, Value s) : builtin(b), self(std::move(s)) {}
  const Builtin* builtin;
  Value self;
};

struct Range : Object {
  Range(int64_t first, int64_t end, int64_t by) : start(first), stop(end), step(by) {}
  int64_t size() const;  // at most INT64_MAX
  int64_t at(int64_t index) const { return start + index * step; }
  int64_t start, stop, step;  // step ≠ 0
};

}  // namespace flotilla::jinja
