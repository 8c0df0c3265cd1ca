#include "router/api/prompt_field.h"

#include <optional>
#include <utility>

#include "common/base/status.h"

namespace flotilla {
namespace json = boost::json;
namespace {

constexpr const char* kPromptForms =
    "must be a string, an array of strings, an array of token ids, or an array of arrays of token "
    "ids";

std::optional<std::vector<int32_t>> IdsOf(const json::array& array) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& entry : array) {
    const std::optional<int64_t> id = AsInt(entry, INT32_MIN, INT32_MAX);
    if (!id.has_value()) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

bool AddPrompt(const json::value& entry, PromptField* out) {
  if (out->are_texts) {
    if (!entry.is_string()) return false;
    out->prompts.push_back({std::string(entry.get_string()), {}});
    return true;
  }
  std::optional<std::vector<int32_t>> ids;
  if (entry.is_array()) ids = IdsOf(entry.get_array());
  if (!ids.has_value()) return false;
  out->prompts.push_back({"", std::move(*ids)});
  return true;
}

}  // namespace

PromptField ReadPromptField(const char* name, size_t max_prompts, FieldReader* reader) {
  PromptField out;
  const json::value* value = reader->Find(name);
  if (value == nullptr) {
    reader->Fail(name, "is missing");
    return out;
  }
  const json::array* array = value->if_array();
  const bool single = array == nullptr || (!array->empty() && array->front().is_number());
  if (array != nullptr && array->empty()) {
    reader->Fail(name, "is empty");
    return out;
  }
  if (!single && array->size() > max_prompts) {
    reader->Fail(name, StrCat("may have at most ", max_prompts, " entries, not ", array->size()));
    return out;
  }
  out.are_texts = array == nullptr || array->front().is_string();
  bool ok = true;
  if (single) {
    ok = AddPrompt(*value, &out);
  } else {
    for (const json::value& entry : *array) ok = ok && AddPrompt(entry, &out);
  }
  if (!ok) reader->Fail(name, kPromptForms);
  return out;
}

}  // namespace flotilla
