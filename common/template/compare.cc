#include "common/template/compare.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "common/template/iterate.h"
#include "common/template/search.h"

namespace flotilla::jinja {
namespace {

// -1, 0 or 1; 2 if one of them is not a number. Exact: an int64_t may not fit into a double.
int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.int_value() < b.int_value() ? -1 : a.int_value() > b.int_value() ? 1 : 0;
  }
  // long double has the 64 bits of mantissa that hold both exactly.
  const auto wide = [](const Value& value) {
    return value.is_integral()        ? static_cast<long double>(value.int_value())
           : value.is(Kind::kWideInt) ? static_cast<long double>(value.wide_value())
                                      : static_cast<long double>(value.float_value());
  };
  const long double x = wide(a);
  const long double y = wide(b);
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y ? 1 : 0;
}

// In containers Python takes the same object as equal without asking it.
StatusOr<bool> SameOrEqual(Runtime& rt, const Value& a, const Value& b) {
  if (a.SameAs(b)) return true;
  return Equals(rt, a, b);
}

StatusOr<bool> EqualItems(Runtime& rt, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(a.size())));
  for (size_t i = 0; i < a.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, SameOrEqual(rt, a[i], b[i]));
    if (!equal) return false;
  }
  return true;
}

StatusOr<bool> EqualDicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(a.size())));
  for (const Dict::Entry& entry : a.entries()) {
    ASSIGN_OR_RETURN(const Value* other, FindKey(rt, b, entry.key));
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool equal, SameOrEqual(rt, entry.value, *other));
    if (!equal) return false;
  }
  return true;
}

bool EqualRanges(const Range& a, const Range& b) {
  const int64_t size = a.size();
  if (size != b.size()) return false;
  return size == 0 || (a.start == b.start && (size == 1 || a.step == b.step));
}

Status NotOrdered(const char* op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return TypeError(value->undefined_message());
  }
  return TypeError(StrCat("'", op, "' not supported between instances of '", a.TypeName(),
                          "' and '", b.TypeName(), "'"));
}

bool Holds(Comparison comparison, int order) {
  switch (comparison) {
    case Comparison::kLt:
      return order == -1;
    case Comparison::kLtEq:
      return order == -1 || order == 0;
    case Comparison::kGt:
      return order == 1;
    default:
      return order == 1 || order == 0;
  }
}

const char* Spelling(Comparison comparison) {
  switch (comparison) {
    case Comparison::kLt:
      return "<";
    case Comparison::kLtEq:
      return "<=";
    case Comparison::kGt:
      return ">";
    default:
      return ">=";
  }
}

int Sign(int64_t difference) { return difference < 0 ? -1 : difference > 0 ? 1 : 0; }

// <, <=, >, >=.
StatusOr<bool> Ordered(Runtime& rt, Comparison comparison, const Value& a, const Value& b) {
  if (a.is_any_number() && b.is_any_number()) return Holds(comparison, CompareNumbers(a, b));
  if (a.is_str() && b.is_str()) {
    RETURN_IF_ERROR(rt.StepBytes(std::min(a.text().size(), b.text().size())));
    // UTF-8's order of bytes is the order of code points.
    return Holds(comparison, Sign(a.text().compare(b.text())));
  }
  if (!a.is_sequence() || a.kind() != b.kind()) return NotOrdered(Spelling(comparison), a, b);
  const DepthGuard guard(rt);
  RETURN_IF_ERROR(guard.status());
  const auto& x = a.items();
  const auto& y = b.items();
  RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(std::min(x.size(), y.size()))));
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    ASSIGN_OR_RETURN(const bool equal, SameOrEqual(rt, x[i], y[i]));
    if (!equal) return Ordered(rt, comparison, x[i], y[i]);
  }
  return Holds(comparison, x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
}

Status CheckHashable(Runtime& rt, const Value& key) {
  RETURN_IF_ERROR(rt.Step());
  if (key.is(Kind::kList) || key.is_dict()) {
    return TypeError(StrCat("unhashable type: '", key.TypeName(), "'"));
  }
  if (!key.is(Kind::kTuple)) return OkStatus();
  for (const Value& item : key.items()) RETURN_IF_ERROR(CheckHashable(rt, item));
  return OkStatus();
}

// Of a key that is no string; dict.size() if absent.
StatusOr<size_t> PositionOf(Runtime& rt, const Dict& dict, const Value& key) {
  for (size_t i = 0; i < dict.size(); ++i) {
    RETURN_IF_ERROR(rt.Step());
    ASSIGN_OR_RETURN(const bool equal, SameOrEqual(rt, dict.entries()[i].key, key));
    if (equal) return i;
  }
  return dict.size();
}

StatusOr<bool> ContainsItem(Runtime& rt, const Value& container, const Value& item) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(rt, container));
  while (true) {
    Value next;
    ASSIGN_OR_RETURN(const bool found, iterator->Next(rt, &next));
    if (!found) return false;
    ASSIGN_OR_RETURN(const bool equal, SameOrEqual(rt, next, item));
    if (equal) return true;
  }
}

}  // namespace

StatusOr<bool> Equals(Runtime& rt, const Value& a, const Value& b) {
  RETURN_IF_ERROR(rt.Step());
  if (a.is_any_number() && b.is_any_number()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  const DepthGuard guard(rt);
  RETURN_IF_ERROR(guard.status());
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kStr:
      if (a.text().size() != b.text().size()) return false;
      RETURN_IF_ERROR(rt.StepBytes(a.text().size()));
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(rt, a.items(), b.items());
    case Kind::kDict:
      return EqualDicts(rt, a.dict(), b.dict());
    case Kind::kRange:
      return EqualRanges(a.range(), b.range());
    default:
      return a.SameAs(b);
  }
}

StatusOr<bool> Compare(Runtime& rt, Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::kEq:
      return Equals(rt, a, b);
    case Comparison::kNe: {
      ASSIGN_OR_RETURN(const bool equal, Equals(rt, a, b));
      return !equal;
    }
    case Comparison::kIn:
      return Contains(rt, b, a);
    case Comparison::kNotIn: {
      ASSIGN_OR_RETURN(const bool contains, Contains(rt, b, a));
      return !contains;
    }
    default:
      RETURN_IF_ERROR(rt.Step());
      return Ordered(rt, comparison, a, b);
  }
}

StatusOr<bool> Less(Runtime& rt, const Value& a, const Value& b) {
  return Compare(rt, Comparison::kLt, a, b);
}

StatusOr<bool> Contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kStr:
      if (!item.is_str()) {
        return TypeError(
            StrCat("'in <string>' requires string as left operand, not ", item.TypeName()));
      }
      RETURN_IF_ERROR(rt.StepBytes(container.text().size()));
      return FindText(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict: {
      ASSIGN_OR_RETURN(const Value* found, FindKey(rt, container.dict(), item));
      return found != nullptr;
    }
    case Kind::kUndefined:
      return false;
    default:
      if (!IsIterable(container)) {
        return TypeError(StrCat("argument of type '", container.TypeName(), "' is not iterable"));
      }
      return ContainsItem(rt, container, item);
  }
}

StatusOr<const Value*> FindKey(Runtime& rt, const Dict& dict, const Value& key) {
  if (key.is_str()) {
    RETURN_IF_ERROR(rt.StepBytes(key.text().size()));
    return dict.Find(key.text());
  }
  RETURN_IF_ERROR(CheckHashable(rt, key));
  ASSIGN_OR_RETURN(const size_t position, PositionOf(rt, dict, key));
  return position == dict.size() ? nullptr : &dict.entries()[position].value;
}

Status SetKey(Runtime& rt, Dict* dict, Value key, Value value) {
  RETURN_IF_ERROR(rt.Step());
  if (key.is_str()) {
    RETURN_IF_ERROR(rt.StepBytes(key.text().size()));
    dict->Set(std::move(key), std::move(value));
    return OkStatus();
  }
  RETURN_IF_ERROR(CheckHashable(rt, key));
  ASSIGN_OR_RETURN(const size_t position, PositionOf(rt, *dict, key));
  if (position != dict->size()) {
    dict->SetAt(position, std::move(value));
  } else {
    dict->Append(std::move(key), std::move(value));
  }
  return OkStatus();
}

}  // namespace flotilla::jinja
