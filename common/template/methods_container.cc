// Methods of list, tuple, dict and of the variable `loop`. None changes its object.
#include <algorithm>
#include <memory>
#include <vector>

#include "common/template/access.h"
#include "common/template/builtin.h"
#include "common/template/compare.h"
#include "common/template/iterate.h"

namespace flotilla::jinja {
namespace {

StatusOr<Value> ListCount(const Call& call) {
  int64_t count = 0;
  RETURN_IF_ERROR(call.rt.Step(static_cast<int64_t>(call.self.items().size())));
  for (const Value& item : call.self.items()) {
    bool equal = item.SameAs(call.arg(0));
    if (!equal) {
      ASSIGN_OR_RETURN(equal, Equals(call.rt, item, call.arg(0)));
    }
    count += equal ? 1 : 0;
  }
  return Value::Int(count);
}

StatusOr<Value> ListIndex(const Call& call) {
  const auto& items = call.self.items();
  const int64_t length = static_cast<int64_t>(items.size());
  ASSIGN_OR_RETURN(int64_t start, IntArg(call, 1, 0));
  ASSIGN_OR_RETURN(int64_t stop, IntArg(call, 2, length));
  if (start < 0) start = std::max<int64_t>(start + length, 0);
  if (stop < 0) stop = std::max<int64_t>(stop + length, 0);
  for (int64_t i = start; i < std::min(stop, length); ++i) {
    const Value& item = items[static_cast<size_t>(i)];
    bool equal = item.SameAs(call.arg(0));
    if (!equal) {
      ASSIGN_OR_RETURN(equal, Equals(call.rt, item, call.arg(0)));
    }
    if (equal) return Value::Int(i);
  }
  return TypeError("the value is not in the list");
}

// Nobody can change the original, nor the copy.
StatusOr<Value> Copy(const Call& call) { return call.self; }

StatusOr<Value> DictGet(const Call& call) {
  ASSIGN_OR_RETURN(const Value* found, FindKey(call.rt, call.self.dict(), call.arg(0)));
  if (found != nullptr) return *found;
  return call.given(1) ? call.arg(1) : Value::None();
}

template <DictView::Part kPart>
StatusOr<Value> DictPart(const Call& call) {
  RETURN_IF_ERROR(call.rt.Charge(sizeof(DictView)));
  return Value(Kind::kDictView, std::make_shared<DictView>(call.self, kPart));
}

StatusOr<Value> LoopCycle(const Call& call) {
  const auto& values = call.all.positional;
  if (!call.all.named.empty()) return TypeError("cycle() got an unexpected keyword argument");
  if (values.empty()) return TypeError("no items for cycling given");
  const int64_t index = call.self.As<LoopContext>().index0();
  return values[static_cast<size_t>(index) % values.size()];
}

StatusOr<Value> LoopChanged(const Call& call) {
  if (!call.all.named.empty()) return TypeError("changed() got an unexpected keyword argument");
  ASSIGN_OR_RETURN(Value values, call.rt.NewTuple(call.all.positional));
  ASSIGN_OR_RETURN(const bool changed,
                   call.self.As<LoopContext>().Changed(call.rt, std::move(values)));
  return Value::Bool(changed);
}

constexpr Builtin kListMethods[] = {
    {"copy", Copy, ""},
    {"count", ListCount, "-", 1},
    {"index", ListIndex, "- - -", 1},
};
constexpr Builtin kDictMethods[] = {
    {"copy", Copy, ""},
    {"get", DictGet, "- -", 1},
    {"items", DictPart<DictView::Part::kItems>, ""},
    {"keys", DictPart<DictView::Part::kKeys>, ""},
    {"values", DictPart<DictView::Part::kValues>, ""},
};
constexpr Builtin kLoopMethods[] = {
    {"changed", LoopChanged, "*"},
    {"cycle", LoopCycle, "*"},
};

}  // namespace

std::span<const Builtin> ListMethods() { return kListMethods; }
std::span<const Builtin> DictMethods() { return kDictMethods; }
std::span<const Builtin> LoopMethods() { return kLoopMethods; }

}  // namespace flotilla::jinja
