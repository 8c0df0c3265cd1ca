#include "common/template/value.h"

#include <algorithm>

#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

constexpr size_t kIndexedFrom = 9;  // entries of a dict; fewer are searched one by one

}  // namespace

Str::Str(std::string t, bool m) : text(std::move(t)), num_chars(CountChars(text)), markup(m) {}

Value Value::Bool(bool b) {
  Value value(Kind::kBool);
  value.int_ = b ? 1 : 0;
  return value;
}

Value Value::Int(int64_t i) {
  Value value(Kind::kInt);
  value.int_ = i;
  return value;
}

Value Value::WideInt(uint64_t i) {
  Value value(Kind::kWideInt);
  value.int_ = static_cast<int64_t>(i);
  return value;
}

Value Value::Float(double d) {
  Value value(Kind::kFloat);
  value.float_ = d;
  return value;
}

Value Value::ConstantStr(std::string text) {
  return Value(Kind::kStr, std::make_shared<Str>(std::move(text), /*m=*/false));
}

const List& Value::list() const {
  DCHECK(is_sequence());
  return As<List>();
}
const std::vector<Value>& Value::items() const { return list().items; }
const Dict& Value::dict() const {
  DCHECK(is_dict());
  return As<Dict>();
}
const DictView& Value::view() const { return As<DictView>(); }
const Range& Value::range() const { return As<Range>(); }

int Value::depth() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
      return list().depth;
    case Kind::kDict:
      return dict().depth();
    case Kind::kDictView:
      return view().dict.depth() + 1;
    case Kind::kFunction:
      return As<Function>().self.depth() + 1;
    default:
      return 0;
  }
}

bool Value::Truthy() const {
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kStr:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return dict().size() != 0;
    case Kind::kDictView:
      return view().dict.dict().size() != 0;
    case Kind::kRange:
      return range().size() != 0;
    default:
      return true;
  }
}

std::string_view Value::TypeName() const {
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kWideInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kStr:
      return str().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      return view().part == DictView::Part::kKeys     ? "dict_keys"
             : view().part == DictView::Part::kValues ? "dict_values"
                                                      : "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kGenerator:
      return "generator";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

bool Value::SameAs(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kWideInt:
      return int_ == other.int_;
    case Kind::kFloat:
      return false;
    default:
      return object_ == other.object_;
  }
}

size_t Dict::Position(std::string_view key) const {
  if (indexed_) {
    const auto found = index_.find(key);
    return found == index_.end() ? entries_.size() : found->second;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].key.is_str() && entries_[i].key.text() == key) return i;
  }
  return entries_.size();
}

const Value* Dict::Find(std::string_view key) const {
  const size_t position = Position(key);
  return position == entries_.size() ? nullptr : &entries_[position].value;
}

void Dict::SetAt(size_t position, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  entries_[position].value = std::move(value);
}

void Dict::Set(Value string_key, Value value) {
  const size_t position = Position(string_key.text());
  if (position != entries_.size()) return SetAt(position, std::move(value));
  Append(std::move(string_key), std::move(value));
}

void Dict::Append(Value key, Value value) {
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  entries_.push_back({std::move(key), std::move(value)});
  if (entries_.size() < kIndexedFrom) return;
  const size_t first_unknown = indexed_ ? entries_.size() - 1 : 0;
  indexed_ = true;
  for (size_t i = first_unknown; i < entries_.size(); ++i) {
    if (entries_[i].key.is_str()) index_.emplace(entries_[i].key.text(), i);
  }
}

int64_t Range::size() const {
  const bool up = step > 0;
  if (up ? start >= stop : start <= stop) return 0;
  // Unsigned: the distance of two int64_t may not fit into one.
  const uint64_t from = static_cast<uint64_t>(up ? start : stop);
  const uint64_t to = static_cast<uint64_t>(up ? stop : start);
  const uint64_t by = up ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
  const uint64_t size = (to - from - 1) / by + 1;
  return static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX));
}

}  // namespace flotilla::jinja
