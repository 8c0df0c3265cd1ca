// One rendering's resources: budgets, the objects it made, and the clock.
//
// Everything that takes time or memory asks here first, so that a hostile template ends with an
// error. Threads: one. Errors: kResourceExhausted names the limit that was passed; the rendering is
// over then.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/template/limits.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// An object that others may refer to in a circle. The Runtime holds all of them and breaks the
// circles at the end; that also keeps destructors from recursing along chains of them.
struct CyclicObject : Object {
  virtual void Release() = 0;
};

class Runtime {
 public:
  Runtime(const ChatTemplateLimits& limits, const std::tm& now) : limits_(limits), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const ChatTemplateLimits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }
  int64_t steps() const { return steps_; }

  Status Step(int64_t count = 1);
  // Walking over `bytes` of text.
  Status StepBytes(size_t bytes) { return Step(1 + static_cast<int64_t>(bytes / 256)); }
  // Memory: counted, never given back.
  Status Charge(size_t bytes);
  // Whether so much could be charged: before something is made whose size the template chooses.
  Status CheckRoom(size_t bytes) const;
  // *out += text, charged.
  Status Append(std::string_view text, std::string* out);

  StatusOr<Value> NewStr(std::string text, bool markup = false);
  StatusOr<Value> NewStr(std::string_view text, bool markup = false) {
    return NewStr(std::string(text), markup);
  }
  StatusOr<Value> NewStr(const char* text) { return NewStr(std::string(text)); }
  StatusOr<Value> NewList(std::vector<Value> items) {
    return NewSequence(Kind::kList, std::move(items));
  }
  StatusOr<Value> NewTuple(std::vector<Value> items) {
    return NewSequence(Kind::kTuple, std::move(items));
  }
  StatusOr<Value> NewPair(Value first, Value second);
  StatusOr<Value> NewDict(Dict dict);
  StatusOr<Value> NewUndefined(std::string message);
  template <typename T>
  StatusOr<Value> NewCyclic(Kind kind, std::shared_ptr<T> object) {
    RETURN_IF_ERROR(Keep(object, sizeof(T)));
    return Value(kind, std::move(object));
  }
  Status Keep(std::shared_ptr<CyclicObject> object, size_t bytes);
  // The object made last is let go if nobody else refers to it.
  void DropLast(const CyclicObject* object);

  // For DepthGuard.
  Status Enter();
  void Leave() { --depth_; }

 private:
  StatusOr<Value> NewSequence(Kind kind, std::vector<Value> items);
  Status CheckValueDepth(int depth) const;

  const ChatTemplateLimits limits_;
  const std::tm now_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
  std::vector<std::shared_ptr<CyclicObject>> kept_;
};

// Around everything that recurses.
class DepthGuard {
 public:
  explicit DepthGuard(Runtime& runtime) : runtime_(runtime), status_(runtime.Enter()) {}
  ~DepthGuard() { runtime_.Leave(); }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  Runtime& runtime_;
  const Status status_;
};

// Errors a template can cause, worded as Python words them.
Status TypeError(const std::string& message);
Status NotSupported(const std::string& message);  // valid for jinja2, not part of this subset

}  // namespace flotilla::jinja
