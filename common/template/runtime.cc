#include "common/template/runtime.h"

#include <algorithm>

namespace flotilla::jinja {
namespace {

constexpr size_t kObjectBytes = 64;  // of an object's own fields, roughly

Status Exhausted(std::string_view limit, int64_t value) {
  return absl::ResourceExhaustedError(
      StrCat("the chat template passed its limit ", limit, " = ", value));
}

}  // namespace

Runtime::~Runtime() {
  for (const auto& object : kept_) object->Release();
}

Status Runtime::Step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) return Exhausted("max_steps", limits_.max_steps);
  return OkStatus();
}

Status Runtime::CheckRoom(size_t bytes) const {
  if (bytes > limits_.max_value_bytes - bytes_) {
    return Exhausted("max_value_bytes", static_cast<int64_t>(limits_.max_value_bytes));
  }
  return OkStatus();
}

Status Runtime::Charge(size_t bytes) {
  RETURN_IF_ERROR(CheckRoom(bytes));
  bytes_ += bytes;
  return OkStatus();
}

Status Runtime::Append(std::string_view text, std::string* out) {
  RETURN_IF_ERROR(Charge(text.size()));
  out->append(text);
  return OkStatus();
}

StatusOr<Value> Runtime::NewStr(std::string text, bool markup) {
  RETURN_IF_ERROR(Charge(kObjectBytes + text.size()));
  return Value(Kind::kStr, std::make_shared<Str>(std::move(text), markup));
}

StatusOr<Value> Runtime::NewSequence(Kind kind, std::vector<Value> items) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  RETURN_IF_ERROR(CheckValueDepth(list->depth));
  RETURN_IF_ERROR(Charge(kObjectBytes + items.size() * sizeof(Value)));
  list->items = std::move(items);
  return Value(kind, std::move(list));
}

StatusOr<Value> Runtime::NewPair(Value first, Value second) {
  std::vector<Value> items;
  items.reserve(2);
  items.push_back(std::move(first));
  items.push_back(std::move(second));
  return NewTuple(std::move(items));
}

StatusOr<Value> Runtime::NewDict(Dict dict) {
  RETURN_IF_ERROR(CheckValueDepth(dict.depth()));
  RETURN_IF_ERROR(Charge(kObjectBytes + dict.size() * sizeof(Dict::Entry)));
  return Value(Kind::kDict, std::make_shared<Dict>(std::move(dict)));
}

StatusOr<Value> Runtime::NewUndefined(std::string message) {
  RETURN_IF_ERROR(Charge(kObjectBytes + message.size()));
  return Value(Kind::kUndefined, std::make_shared<UndefinedInfo>(std::move(message)));
}

Status Runtime::CheckValueDepth(int depth) const {
  if (depth > limits_.max_value_depth) {
    return Exhausted("max_value_depth", limits_.max_value_depth);
  }
  return OkStatus();
}

Status Runtime::Keep(std::shared_ptr<CyclicObject> object, size_t bytes) {
  RETURN_IF_ERROR(Charge(kObjectBytes + bytes));
  kept_.push_back(std::move(object));
  return OkStatus();
}

void Runtime::DropLast(const CyclicObject* object) {
  if (!kept_.empty() && kept_.back().get() == object && kept_.back().use_count() == 1) {
    kept_.pop_back();
  }
}

Status Runtime::Enter() {
  if (++depth_ > limits_.max_depth) return Exhausted("max_depth", limits_.max_depth);
  return OkStatus();
}

Status TypeError(const std::string& message) { return absl::InvalidArgumentError(message); }

Status NotSupported(const std::string& message) { return absl::UnimplementedError(message); }

}  // namespace flotilla::jinja
