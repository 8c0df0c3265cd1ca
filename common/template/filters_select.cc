// Filters that apply another filter or a test to each item: they work as they are walked over.
#include <memory>
#include <utility>

#include "common/template/attribute_path.h"
#include "common/template/builtin.h"
#include "common/template/iterate.h"

namespace flotilla::jinja {
namespace {

// What is done to each item, prepared when the first one is asked for (so that no error comes
// before that, as in jinja2).
class EachItem : public Iterator {
 public:
  EachItem(Value source, CallArgs args) : source_(std::move(source)), args_(std::move(args)) {}

  StatusOr<bool> Next(Runtime& rt, Value* item) override {
    if (iterator_ == nullptr) {
      if (done_ || !source_.Truthy()) return false;
      done_ = true;  // if preparing fails, there is nothing more
      RETURN_IF_ERROR(Prepare(rt));
      ASSIGN_OR_RETURN(iterator_, Iterate(rt, source_));
    }
    while (true) {
      Value next;
      ASSIGN_OR_RETURN(const bool found, iterator_->Next(rt, &next));
      if (!found) return false;
      ASSIGN_OR_RETURN(const bool keep, Apply(rt, next, item));
      if (keep) return true;
    }
  }

 protected:
  virtual Status Prepare(Runtime& rt) = 0;
  // Whether there is a result for `next`, which is then in *item.
  virtual StatusOr<bool> Apply(Runtime& rt, const Value& next, Value* item) = 0;

  // The name of a filter or test at `position` of the arguments, and what follows it.
  StatusOr<std::string_view> TakeName(size_t position) {
    const Value& name = args_.positional[position];
    if (!name.is_str()) return TypeError("a filter's or test's name must be a str");
    rest_.positional.assign(args_.positional.begin() + static_cast<std::ptrdiff_t>(position) + 1,
                            args_.positional.end());
    rest_.named = args_.named;
    return name.text();
  }

  const Value source_;
  const CallArgs args_;
  CallArgs rest_;

 private:
  std::unique_ptr<Iterator> iterator_;
  bool done_ = false;
};

// map("filter", …) or map(attribute=…, default=…).
class MapWalk : public EachItem {
 public:
  using EachItem::EachItem;

 protected:
  Status Prepare(Runtime& rt) override {
    if (args_.positional.empty()) return PrepareAttribute(rt);
    ASSIGN_OR_RETURN(const std::string_view name, TakeName(0));
    filter_ = FindFilter(name);
    if (filter_ == nullptr) return TypeError(StrCat("No filter named '", name, "'."));
    return OkStatus();
  }

  StatusOr<bool> Apply(Runtime& rt, const Value& next, Value* item) override {
    if (filter_ != nullptr) {
      ASSIGN_OR_RETURN(*item, CallBuiltin(rt, *filter_, next, rest_));
    } else {
      ASSIGN_OR_RETURN(*item, path_.Get(rt, next, default_));
    }
    return true;
  }

 private:
  Status PrepareAttribute(Runtime& rt) {
    bool has_attribute = false;
    for (const auto& [name, value] : args_.named) has_attribute |= name == "attribute";
    if (!has_attribute) return TypeError("map requires a filter argument");
    for (const auto& [name, value] : args_.named) {
      if (name == "attribute") {
        ASSIGN_OR_RETURN(path_, AttributePath::Parse(rt, value));
      } else if (name == "default") {
        default_ = value;
      } else {
        return TypeError(StrCat("Unexpected keyword argument '", name, "'"));
      }
    }
    return OkStatus();
  }

  const Builtin* filter_ = nullptr;
  AttributePath path_;
  Value default_;
};

// select, reject: by the item; selectattr, rejectattr: by one of its attributes.
class SelectWalk : public EachItem {
 public:
  SelectWalk(const Call& call, bool by_attribute, bool wanted)
      : EachItem(call.self, call.all), by_attribute_(by_attribute), wanted_(wanted) {}

 protected:
  Status Prepare(Runtime& rt) override {
    if (by_attribute_) {
      if (args_.positional.empty()) return TypeError("Missing parameter for attribute name");
      ASSIGN_OR_RETURN(path_, AttributePath::Parse(rt, args_.positional[0]));
    }
    const size_t position = by_attribute_ ? 1 : 0;
    if (args_.positional.size() == position) return OkStatus();
    ASSIGN_OR_RETURN(const std::string_view name, TakeName(position));
    test_ = FindTest(name);
    if (test_ == nullptr) return TypeError(StrCat("No test named '", name, "'."));
    return OkStatus();
  }

  StatusOr<bool> Apply(Runtime& rt, const Value& next, Value* item) override {
    ASSIGN_OR_RETURN(Value tested, path_.Get(rt, next));
    if (test_ != nullptr) {
      ASSIGN_OR_RETURN(tested, CallBuiltin(rt, *test_, tested, rest_));
    }
    if (tested.Truthy() != wanted_) return false;
    *item = next;
    return true;
  }

 private:
  const bool by_attribute_;
  const bool wanted_;
  AttributePath path_;
  const Builtin* test_ = nullptr;  // none: the item's truth
};

// The walk keeps a copy of the arguments, and one of those for the filter or test.
Status ChargeArguments(const Call& call) {
  const size_t count = call.all.positional.size() + call.all.named.size();
  RETURN_IF_ERROR(call.rt.Step(1 + static_cast<int64_t>(count / 8)));
  return call.rt.Charge(2 * (call.all.positional.size() * sizeof(call.all.positional[0]) +
                             call.all.named.size() * sizeof(call.all.named[0])));
}

StatusOr<Value> Map(const Call& call) {
  RETURN_IF_ERROR(ChargeArguments(call));
  return NewGenerator(call.rt, std::make_unique<MapWalk>(call.self, call.all));
}

template <bool kByAttribute, bool kWanted>
StatusOr<Value> Select(const Call& call) {
  RETURN_IF_ERROR(ChargeArguments(call));
  return NewGenerator(call.rt, std::make_unique<SelectWalk>(call, kByAttribute, kWanted));
}

constexpr Builtin kSelectFilters[] = {
    {"map", Map, "*"},
    {"reject", Select<false, false>, "*"},
    {"rejectattr", Select<true, false>, "*"},
    {"select", Select<false, true>, "*"},
    {"selectattr", Select<true, true>, "*"},
};

}  // namespace

std::span<const Builtin> SelectFilters() { return kSelectFilters; }

}  // namespace flotilla::jinja
