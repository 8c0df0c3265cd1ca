// Walking over values, one at a time as Python's iterators do, and the objects that are such a
// walk.
//
// Threads: one. Errors: TypeError for what can't be iterated, and whatever making an item raises.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

class Iterator {
 public:
  virtual ~Iterator() = default;
  // False at the end, and from then on.
  virtual StatusOr<bool> Next(Runtime& rt, Value* item) = 0;
};

// Also fine for a generator or loop: then it continues their walk.
StatusOr<std::unique_ptr<Iterator>> Iterate(Runtime& rt, const Value& value);
StatusOr<std::vector<Value>> ToVector(Runtime& rt, const Value& value);
bool IsIterable(const Value& value);

// len(value).
StatusOr<int64_t> Length(Runtime& rt, const Value& value);
bool HasLength(const Value& value);

// What filters such as map and select return: does its work when walked over, once.
struct Generator : CyclicObject {
  explicit Generator(std::unique_ptr<Iterator> s) : source(std::move(s)) {}
  void Release() override { source.reset(); }
  std::unique_ptr<Iterator> source;
};
StatusOr<Value> NewGenerator(Runtime& rt, std::unique_ptr<Iterator> source);

// The variable `loop`: a walk that knows where it is. Looks one item ahead if asked to.
class LoopContext : public CyclicObject {
 public:
  LoopContext(Value iterable, std::unique_ptr<Iterator> iterator)
      : iterable_(std::move(iterable)), iterator_(std::move(iterator)) {}
  void Release() override;

  StatusOr<bool> Next(Runtime& rt, Value* item);
  StatusOr<int64_t> Length(Runtime& rt);
  StatusOr<Value> PreviousItem(Runtime& rt) const;
  StatusOr<Value> NextItem(Runtime& rt);
  StatusOr<bool> IsLast(Runtime& rt);
  int64_t index0() const { return index0_; }
  // loop.changed(): whether `value` differs from the last call's.
  StatusOr<bool> Changed(Runtime& rt, Value value);

 private:
  Status Peek(Runtime& rt);  // fills after_, if there is a next item

  Value iterable_;
  std::unique_ptr<Iterator> iterator_;
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  Value before_, current_, after_;
  Value last_changed_;
};

}  // namespace flotilla::jinja
