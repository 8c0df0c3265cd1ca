#include "router/api/text_parts.h"

#include <algorithm>

#include "common/base/status.h"
#include "router/base/json_reader.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

// One entry of an array of content parts.
MaybeError AppendPart(const json::value& part, const std::string& field,
                      std::span<const char* const> types, std::string* out) {
  if (!part.is_object()) return InvalidField(field, StrCat("'", field, "' must be an object."));
  FieldReader reader(part.get_object(), field + ".");
  const std::optional<std::string_view> type = reader.String("type");
  if (!type.has_value()) reader.Fail("type", "is missing");
  const bool refusal = type == "refusal";  // what an assistant said, in OpenAI's APIs
  if (!reader.error().has_value() && !refusal && std::ranges::find(types, *type) == types.end())
    reader.Fail("type",
                StrCat("must be '", types[0], "': this model takes no images, audio or files"));
  const char* const name = refusal ? "refusal" : "text";
  const std::optional<std::string_view> text = reader.String(name);
  if (!text.has_value()) reader.Fail(name, "is missing");
  if (reader.error().has_value()) return reader.error();
  out->append(*text);
  return std::nullopt;
}

}  // namespace

MaybeError ReadText(const json::value& content, const std::string& field,
                    std::span<const char* const> types, std::string* out) {
  if (content.is_string()) {
    const json::string& text = content.get_string();
    out->append(text.data(), text.size());
    return std::nullopt;
  }
  if (!content.is_array())
    return InvalidField(field, StrCat("'", field, "' must be a string or an array of text parts."));
  size_t i = 0;
  for (const json::value& part : content.get_array()) {
    if (i > 0) out->push_back('\n');
    if (auto error = AppendPart(part, StrCat(field, "[", i++, "]"), types, out)) return error;
  }
  return std::nullopt;
}

}  // namespace flotilla
