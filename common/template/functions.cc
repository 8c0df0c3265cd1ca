// Global functions: jinja2's range, dict and namespace; transformers' raise_exception and
// strftime_now.
#include <array>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/template/builtin.h"
#include "common/template/compare.h"
#include "common/template/iterate.h"
#include "common/template/objects.h"
#include "common/template/to_text.h"

namespace flotilla::jinja {
namespace {

StatusOr<Value> MakeRange(const Call& call) {
  ASSIGN_OR_RETURN(int64_t start, ToInt(call.arg(0)));
  int64_t stop = start;
  if (call.given(1)) {
    ASSIGN_OR_RETURN(stop, ToInt(call.arg(1)));
  } else {
    start = 0;
  }
  ASSIGN_OR_RETURN(const int64_t step, IntArg(call, 2, 1));
  if (step == 0) return TypeError("range() arg 3 must not be zero");
  auto range = std::make_shared<Range>(start, stop, step);
  if (range->size() > call.rt.limits().max_range) {
    return absl::ResourceExhaustedError(StrCat(
        "Range too big. The chat template's limit max_range is ", call.rt.limits().max_range));
  }
  RETURN_IF_ERROR(call.rt.Charge(sizeof(Range)));
  return Value(Kind::kRange, std::move(range));
}

// A dict's entries, or an iterable of pairs; then keyword arguments.
StatusOr<Dict> DictFrom(const Call& call) {
  Dict dict;
  const auto& positional = call.all.positional;
  if (positional.size() > 1) return TypeError("dict expected at most 1 argument");
  if (positional.size() == 1 && positional[0].is_dict()) {
    RETURN_IF_ERROR(call.rt.Step(static_cast<int64_t>(positional[0].dict().size())));
    dict = positional[0].dict();
  } else if (positional.size() == 1) {
    if (positional[0].is_undefined()) return TypeError(positional[0].undefined_message());
    ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> pairs, Iterate(call.rt, positional[0]));
    while (true) {
      Value pair;
      ASSIGN_OR_RETURN(const bool found, pairs->Next(call.rt, &pair));
      if (!found) break;
      ASSIGN_OR_RETURN(const std::vector<Value> two, ToVector(call.rt, pair));
      if (two.size() != 2) return TypeError("dictionary update sequence element has not length 2");
      RETURN_IF_ERROR(SetKey(call.rt, &dict, two[0], two[1]));
      RETURN_IF_ERROR(call.rt.Charge(sizeof(Dict::Entry)));
    }
  }
  for (const auto& [name, value] : call.all.named) {
    ASSIGN_OR_RETURN(Value key, call.rt.NewStr(name));
    RETURN_IF_ERROR(SetKey(call.rt, &dict, std::move(key), value));
  }
  return dict;
}

StatusOr<Value> MakeDict(const Call& call) {
  ASSIGN_OR_RETURN(Dict dict, DictFrom(call));
  return call.rt.NewDict(std::move(dict));
}

StatusOr<Value> MakeNamespace(const Call& call) {
  auto ns = std::make_shared<Namespace>();
  ASSIGN_OR_RETURN(ns->attributes, DictFrom(call));
  RETURN_IF_ERROR(call.rt.Charge(ns->attributes.size() * sizeof(Dict::Entry)));
  return call.rt.NewCyclic(Kind::kNamespace, std::move(ns));
}

StatusOr<Value> RaiseException(const Call& call) {
  ASSIGN_OR_RETURN(const std::string message, ToText(call.rt, call.arg(0)));
  return absl::InvalidArgumentError(message);
}

// datetime.now().strftime(format): what only Python knows is replaced first, as Python does it.
StatusOr<Value> StrftimeNow(const Call& call) {
  constexpr size_t kMaxFormat = 1024;
  ASSIGN_OR_RETURN(const std::string_view text, TextArg(call, 0));
  if (text.size() > kMaxFormat) return NotSupported("a date format of that length");
  std::string format;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '%' && i + 1 < text.size() ? text[i + 1] : '\0';
    if (next == 'f') {
      format += "000000";
    } else if (next == '%') {
      format += "%%";
    } else if (next != 'z' && next != 'Z') {
      format += text[i];
      continue;
    }
    ++i;
  }
  // One more character than the format's own, as an empty result could also mean "too long".
  std::array<char, 64 * kMaxFormat> buffer;
  const size_t size =
      std::strftime(buffer.data(), buffer.size(), (format + ".").c_str(), &call.rt.now());
  if (size == 0) return NotSupported("a date of that length");
  return call.rt.NewStr(std::string(buffer.data(), size - 1));
}

constexpr Builtin kGlobals[] = {
    {"dict", MakeDict, "*"},
    {"namespace", MakeNamespace, "*"},
    {"raise_exception", RaiseException, "message", 1},
    {"range", MakeRange, "- - -", 1},
    {"strftime_now", StrftimeNow, "format", 1},
};

}  // namespace

std::span<const Builtin> Globals() { return kGlobals; }

}  // namespace flotilla::jinja
