// Objects of the language that are neither data nor walks over data.
//
// Threads: one.
#pragma once

#include <memory>
#include <vector>

#include "common/template/ast.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// What `namespace()` makes: the one object that templates may change.
struct Namespace : CyclicObject {
  void Release() override { attributes = Dict(); }
  Dict attributes;
};

// The variables of one running function: the template, a macro or a call block's body.
struct Activation : CyclicObject, std::enable_shared_from_this<Activation> {
  Activation(size_t num_slots, Activation* p) : slots(num_slots), parent(p) {}
  void Release() override { slots.clear(); }
  // Before an object gets a pointer to this activation: it then lives as long as the Runtime.
  Status Capture(Runtime& rt) {
    if (captured) return OkStatus();
    captured = true;
    return rt.Keep(shared_from_this(), sizeof(Activation) + slots.size() * sizeof(Value));
  }
  std::vector<Value> slots;
  Activation* parent;  // of the function that this one was defined in; captured
  bool captured = false;
};

// The activation lives as long as the Runtime (it is captured).
struct Macro : Object {
  Macro(const MacroDef* d, Activation* o) : def(d), outer(o) {}
  const MacroDef* def;
  Activation* outer;
};

}  // namespace flotilla::jinja
