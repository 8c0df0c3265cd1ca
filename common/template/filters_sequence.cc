// Filters that order sequences or pick from them.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/template/access.h"
#include "common/template/attribute_path.h"
#include "common/template/builtin.h"
#include "common/template/compare.h"
#include "common/template/iterate.h"
#include "common/template/operators.h"
#include "common/template/sort.h"

namespace flotilla::jinja {
namespace {

StatusOr<Value> LengthFilter(const Call& call) {
  ASSIGN_OR_RETURN(const int64_t length, Length(call.rt, call.self));
  return Value::Int(length);
}

StatusOr<Value> ListFilter(const Call& call) {
  ASSIGN_OR_RETURN(std::vector<Value> items, ToVector(call.rt, call.self));
  return call.rt.NewList(std::move(items));
}

StatusOr<Value> First(const Call& call) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(call.rt, call.self));
  Value first;
  ASSIGN_OR_RETURN(const bool found, iterator->Next(call.rt, &first));
  if (!found) return call.rt.NewUndefined("No first item, sequence was empty.");
  return first;
}

// Whether Python's reversed() takes it.
bool IsReversible(const Value& value) { return HasLength(value) && !value.is(Kind::kLoop); }

StatusOr<Value> Last(const Call& call) {
  if (!IsReversible(call.self)) {
    return TypeError(StrCat("'", call.self.TypeName(), "' object is not reversible"));
  }
  if (call.self.is_str() || call.self.is_sequence() || call.self.is(Kind::kRange)) {
    ASSIGN_OR_RETURN(const int64_t length, Length(call.rt, call.self));
    if (length > 0) return GetItem(call.rt, call.self, Value::Int(-1));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(call.rt, call.self));
  if (items.empty()) return call.rt.NewUndefined("No last item, sequence was empty.");
  return items.back();
}

// A string reversed; an iterator over what has a length; a list of anything else.
StatusOr<Value> Reverse(const Call& call) {
  const Value& value = call.self;
  if (value.is_str()) {
    return GetSlice(call.rt, value, Value::None(), Value::None(), Value::Int(-1));
  }
  if (!IsIterable(value)) return TypeError("argument must be iterable");
  ASSIGN_OR_RETURN(std::vector<Value> items, ToVector(call.rt, value));
  std::reverse(items.begin(), items.end());
  ASSIGN_OR_RETURN(const Value list, call.rt.NewList(std::move(items)));
  if (!IsReversible(value)) return list;
  ASSIGN_OR_RETURN(std::unique_ptr<Iterator> walk, Iterate(call.rt, list));
  return NewGenerator(call.rt, std::move(walk));
}

// Items and what they are compared by.
struct Keyed {
  std::vector<Value> items;
  std::vector<Value> keys;
};

StatusOr<Value> SortKey(const Call& call, const std::vector<AttributePath>& paths, bool ignore_case,
                        const Value& item) {
  std::vector<Value> key;
  for (const AttributePath& path : paths) {
    ASSIGN_OR_RETURN(key.emplace_back(), path.Get(call.rt, item));
    if (ignore_case) {
      ASSIGN_OR_RETURN(key.back(), IgnoreCase(call.rt, key.back()));
    }
  }
  return call.rt.NewList(std::move(key));
}

// "a,b.c" → the paths a and b.c.
StatusOr<std::vector<AttributePath>> SortPaths(const Call& call, const Value& attribute) {
  std::vector<AttributePath> paths;
  if (!attribute.is_str()) {
    ASSIGN_OR_RETURN(paths.emplace_back(), AttributePath::Parse(call.rt, attribute));
    return paths;
  }
  std::string_view rest = attribute.text();
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    ASSIGN_OR_RETURN(const Value part, call.rt.NewStr(rest.substr(0, comma)));
    ASSIGN_OR_RETURN(paths.emplace_back(), AttributePath::Parse(call.rt, part));
    if (comma == rest.size()) return paths;
    rest.remove_prefix(comma + 1);
  }
}

StatusOr<Value> Sorted(const Call& call, const Keyed& keyed, bool reverse) {
  ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(call.rt, keyed.keys, reverse));
  std::vector<Value> items;
  items.reserve(order.size());
  for (size_t i : order) items.push_back(keyed.items[i]);
  return call.rt.NewList(std::move(items));
}

StatusOr<Value> Sort(const Call& call) {
  const bool reverse = call.given(0) && call.arg(0).Truthy();
  const bool ignore_case = !call.given(1) || !call.arg(1).Truthy();
  ASSIGN_OR_RETURN(const std::vector<AttributePath> paths,
                   SortPaths(call, call.given(2) ? call.arg(2) : Value::None()));
  Keyed keyed;
  ASSIGN_OR_RETURN(keyed.items, ToVector(call.rt, call.self));
  for (const Value& item : keyed.items) {
    ASSIGN_OR_RETURN(keyed.keys.emplace_back(), SortKey(call, paths, ignore_case, item));
  }
  return Sorted(call, keyed, reverse);
}

StatusOr<Value> DictSort(const Call& call) {
  if (!call.self.is_dict()) {
    return TypeError(call.self.is_undefined()
                         ? call.self.undefined_message()
                         : StrCat("dictsort needs a dict, not ", call.self.TypeName()));
  }
  const bool ignore_case = !call.given(0) || !call.arg(0).Truthy();
  bool by_key = true;
  if (call.given(1)) {
    by_key = call.arg(1).is_str() && call.arg(1).text() == "key";
    if (!by_key && !(call.arg(1).is_str() && call.arg(1).text() == "value")) {
      return TypeError("You can only sort by either \"key\" or \"value\"");
    }
  }
  Keyed keyed;
  for (const Dict::Entry& entry : call.self.dict().entries()) {
    ASSIGN_OR_RETURN(keyed.items.emplace_back(), call.rt.NewPair(entry.key, entry.value));
    keyed.keys.push_back(by_key ? entry.key : entry.value);
    if (ignore_case) {
      ASSIGN_OR_RETURN(keyed.keys.back(), IgnoreCase(call.rt, keyed.keys.back()));
    }
  }
  return Sorted(call, keyed, call.given(2) && call.arg(2).Truthy());
}

// The key by which `unique`, `min` and `max` compare: arguments are case_sensitive, attribute.
struct KeyFunction {
  AttributePath path;
  bool ignore_case = true;

  static StatusOr<KeyFunction> From(const Call& call) {
    KeyFunction key;
    key.ignore_case = !call.given(0) || !call.arg(0).Truthy();
    if (call.given(1)) {
      ASSIGN_OR_RETURN(key.path, AttributePath::Parse(call.rt, call.arg(1)));
    }
    return key;
  }

  StatusOr<Value> Of(Runtime& rt, const Value& item) const {
    ASSIGN_OR_RETURN(Value value, path.Get(rt, item));
    return ignore_case ? IgnoreCase(rt, value) : value;
  }
};

// The first of each key, found as it is walked over.
class UniqueWalk : public Iterator {
 public:
  UniqueWalk(Value source, KeyFunction key) : source_(std::move(source)), key_(std::move(key)) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    if (iterator_ == nullptr) {
      ASSIGN_OR_RETURN(iterator_, Iterate(rt, source_));
    }
    while (true) {
      ASSIGN_OR_RETURN(const bool found, iterator_->Next(rt, item));
      if (!found) return false;
      ASSIGN_OR_RETURN(Value key, key_.Of(rt, *item));
      ASSIGN_OR_RETURN(const Value* known, FindKey(rt, seen_, key));
      if (known != nullptr) continue;
      RETURN_IF_ERROR(rt.Charge(sizeof(Dict::Entry)));
      seen_.Append(std::move(key), Value::None());
      return true;
    }
  }

 private:
  const Value source_;
  const KeyFunction key_;
  std::unique_ptr<Iterator> iterator_;
  Dict seen_;
};

StatusOr<Value> Unique(const Call& call) {
  ASSIGN_OR_RETURN(KeyFunction key, KeyFunction::From(call));
  return NewGenerator(call.rt, std::make_unique<UniqueWalk>(call.self, std::move(key)));
}

template <Comparison kBetter>
StatusOr<Value> Best(const Call& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(call.rt, call.self));
  if (items.empty()) return call.rt.NewUndefined("No aggregated item, sequence was empty.");
  ASSIGN_OR_RETURN(const KeyFunction key, KeyFunction::From(call));
  size_t best = 0;
  ASSIGN_OR_RETURN(Value best_key, key.Of(call.rt, items[0]));
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(Value next, key.Of(call.rt, items[i]));
    ASSIGN_OR_RETURN(const bool better, Compare(call.rt, kBetter, next, best_key));
    if (!better) continue;
    best = i;
    best_key = std::move(next);
  }
  return items[best];
}

StatusOr<Value> Sum(const Call& call) {
  AttributePath path;
  if (call.given(0)) {
    ASSIGN_OR_RETURN(path, AttributePath::Parse(call.rt, call.arg(0)));
  }
  Value sum = call.given(1) ? call.arg(1) : Value::Int(0);
  if (sum.is_str()) return TypeError("sum() can't sum strings");
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(call.rt, call.self));
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value value, path.Get(call.rt, item));
    ASSIGN_OR_RETURN(sum, Arithmetic(call.rt, ExprKind::kAdd, sum, value));
  }
  return sum;
}

// An error that comes only when somebody walks.
class FailingWalk : public Iterator {
 public:
  explicit FailingWalk(Status status) : status_(std::move(status)) {}
  StatusOr<bool> Next(Runtime&, Value*) override { return status_; }

 private:
  const Status status_;
};

StatusOr<Value> Items(const Call& call) {
  std::unique_ptr<Iterator> walk;
  if (call.self.is_dict()) {
    const Value view(Kind::kDictView,
                     std::make_shared<DictView>(call.self, DictView::Part::kItems));
    ASSIGN_OR_RETURN(walk, Iterate(call.rt, view));
  } else if (call.self.is_undefined()) {
    ASSIGN_OR_RETURN(walk, Iterate(call.rt, call.self));
  } else {
    walk = std::make_unique<FailingWalk>(TypeError("Can only get item pairs from a mapping."));
  }
  return NewGenerator(call.rt, std::move(walk));
}

constexpr Builtin kSequenceFilters[] = {
    {"count", LengthFilter, ""},
    {"dictsort", DictSort, "case_sensitive by reverse"},
    {"first", First, ""},
    {"items", Items, ""},
    {"last", Last, ""},
    {"length", LengthFilter, ""},
    {"list", ListFilter, ""},
    {"max", Best<Comparison::kGt>, "case_sensitive attribute"},
    {"min", Best<Comparison::kLt>, "case_sensitive attribute"},
    {"reverse", Reverse, ""},
    {"sort", Sort, "reverse case_sensitive attribute"},
    {"sum", Sum, "attribute start"},
    {"unique", Unique, "case_sensitive attribute"},
};

}  // namespace

std::span<const Builtin> SequenceFilters() { return kSequenceFilters; }

}  // namespace flotilla::jinja
