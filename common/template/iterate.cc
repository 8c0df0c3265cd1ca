#include "common/template/iterate.h"

#include <utility>

#include "common/template/compare.h"
#include "common/template/objects.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

class EmptyIterator : public Iterator {
 public:
  StatusOr<bool> Next(Runtime&, Value*) override { return false; }
};

class ListIterator : public Iterator {
 public:
  explicit ListIterator(Value list) : list_(std::move(list)) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    RETURN_IF_ERROR(rt.Step());
    if (next_ == list_.items().size()) return false;
    *item = list_.items()[next_++];
    return true;
  }

 private:
  const Value list_;
  size_t next_ = 0;
};

class TextIterator : public Iterator {
 public:
  explicit TextIterator(Value text) : text_(std::move(text)) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    RETURN_IF_ERROR(rt.Step());
    const std::string_view text = text_.text();
    if (byte_ == text.size()) return false;
    const size_t begin = byte_;
    NextChar(text, &byte_);
    ASSIGN_OR_RETURN(*item, rt.NewStr(text.substr(begin, byte_ - begin)));
    return true;
  }

 private:
  const Value text_;
  size_t byte_ = 0;
};

class DictIterator : public Iterator {
 public:
  DictIterator(Value dict, DictView::Part part) : dict_(std::move(dict)), part_(part) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    RETURN_IF_ERROR(rt.Step());
    if (next_ == dict_.dict().size()) return false;
    const Dict::Entry& entry = dict_.dict().entries()[next_++];
    if (part_ == DictView::Part::kItems) {
      ASSIGN_OR_RETURN(*item, rt.NewPair(entry.key, entry.value));
    } else {
      *item = part_ == DictView::Part::kKeys ? entry.key : entry.value;
    }
    return true;
  }

 private:
  const Value dict_;
  const DictView::Part part_;
  size_t next_ = 0;
};

class RangeIterator : public Iterator {
 public:
  explicit RangeIterator(const Range& range) : range_(range), size_(range.size()) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    RETURN_IF_ERROR(rt.Step());
    if (next_ == size_) return false;
    *item = Value::Int(range_.at(next_++));
    return true;
  }

 private:
  const Range range_;
  const int64_t size_;
  int64_t next_ = 0;
};

class GeneratorIterator : public Iterator {
 public:
  explicit GeneratorIterator(Value generator) : generator_(std::move(generator)) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    const DepthGuard guard(rt);  // generators may be chained
    RETURN_IF_ERROR(guard.status());
    RETURN_IF_ERROR(rt.Step());
    return generator_.As<Generator>().source->Next(rt, item);
  }

 private:
  const Value generator_;
};

// A loop walked over by someone else yields pairs of an item and the loop itself.
class LoopIterator : public Iterator {
 public:
  explicit LoopIterator(Value loop) : loop_(std::move(loop)) {}
  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    RETURN_IF_ERROR(rt.Step());
    Value next;
    ASSIGN_OR_RETURN(const bool found, loop_.As<LoopContext>().Next(rt, &next));
    if (!found) return false;
    ASSIGN_OR_RETURN(*item, rt.NewPair(std::move(next), loop_));
    return true;
  }

 private:
  const Value loop_;
};

}  // namespace

StatusOr<std::unique_ptr<Iterator>> Iterate(Runtime& rt, const Value& value) {
  RETURN_IF_ERROR(rt.Step());
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::make_unique<EmptyIterator>();
    case Kind::kStr:
      return std::make_unique<TextIterator>(value);
    case Kind::kList:
    case Kind::kTuple:
      return std::make_unique<ListIterator>(value);
    case Kind::kDict:
      return std::make_unique<DictIterator>(value, DictView::Part::kKeys);
    case Kind::kDictView:
      return std::make_unique<DictIterator>(value.view().dict, value.view().part);
    case Kind::kRange:
      return std::make_unique<RangeIterator>(value.range());
    case Kind::kGenerator:
      return std::make_unique<GeneratorIterator>(value);
    case Kind::kLoop:
      return std::make_unique<LoopIterator>(value);
    default:
      return TypeError(StrCat("'", value.TypeName(), "' object is not iterable"));
  }
}

bool IsIterable(const Value& value) { return HasLength(value) || value.is(Kind::kGenerator); }

StatusOr<std::vector<Value>> ToVector(Runtime& rt, const Value& value) {
  if (value.is_sequence()) {
    RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(value.items().size())));
    return value.items();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(rt, value));
  std::vector<Value> items;
  while (true) {
    Value item;
    ASSIGN_OR_RETURN(const bool found, iterator->Next(rt, &item));
    if (!found) return items;
    items.push_back(std::move(item));
  }
}

bool HasLength(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kStr:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

StatusOr<int64_t> Length(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kStr:
      return static_cast<int64_t>(value.str().num_chars);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    case Kind::kDictView:
      return static_cast<int64_t>(value.view().dict.dict().size());
    case Kind::kRange:
      return value.range().size();
    case Kind::kLoop:
      return value.As<LoopContext>().Length(rt);
    default:
      return TypeError(StrCat("object of type '", value.TypeName(), "' has no len()"));
  }
}

StatusOr<Value> NewGenerator(Runtime& rt, std::unique_ptr<Iterator> source) {
  return rt.NewCyclic(Kind::kGenerator, std::make_shared<Generator>(std::move(source)));
}

void LoopContext::Release() {
  iterator_.reset();
  iterable_ = before_ = current_ = after_ = last_changed_ = Value();
}

Status LoopContext::Peek(Runtime& rt) {
  if (!after_.is_missing()) return OkStatus();
  Value next;
  ASSIGN_OR_RETURN(const bool found, iterator_->Next(rt, &next));
  if (found) after_ = std::move(next);
  return OkStatus();
}

StatusOr<bool> LoopContext::Next(Runtime& rt, Value* item) {
  RETURN_IF_ERROR(Peek(rt));
  if (after_.is_missing()) return false;
  ++index0_;
  before_ = std::move(current_);
  current_ = std::exchange(after_, Value());
  *item = current_;
  return true;
}

StatusOr<int64_t> LoopContext::Length(Runtime& rt) {
  if (length_.has_value()) return *length_;
  if (HasLength(iterable_)) {
    ASSIGN_OR_RETURN(length_, jinja::Length(rt, iterable_));
    return *length_;
  }
  // Not known before the end: the rest is fetched now and walked over later.
  std::vector<Value> rest;
  while (true) {
    Value item;
    ASSIGN_OR_RETURN(const bool found, iterator_->Next(rt, &item));
    if (!found) break;
    rest.push_back(std::move(item));
  }
  length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_.is_missing() ? 0 : 1);
  ASSIGN_OR_RETURN(Value list, rt.NewList(std::move(rest)));
  iterator_ = std::make_unique<ListIterator>(std::move(list));
  return *length_;
}

StatusOr<Value> LoopContext::PreviousItem(Runtime& rt) const {
  if (index0_ == 0) return rt.NewUndefined("there is no previous item");
  return before_;
}

StatusOr<Value> LoopContext::NextItem(Runtime& rt) {
  RETURN_IF_ERROR(Peek(rt));
  if (after_.is_missing()) return rt.NewUndefined("there is no next item");
  return after_;
}

StatusOr<bool> LoopContext::IsLast(Runtime& rt) {
  RETURN_IF_ERROR(Peek(rt));
  return after_.is_missing();
}

StatusOr<bool> LoopContext::Changed(Runtime& rt, Value value) {
  if (!last_changed_.is_missing()) {
    ASSIGN_OR_RETURN(const bool same, Equals(rt, last_changed_, value));
    if (same) return false;
  }
  last_changed_ = std::move(value);
  return true;
}

}  // namespace flotilla::jinja
