// Text as clients write it in a conversation: a string, or an array of parts of text.
//
// Threads: pure functions. Errors: ApiError naming the field. Source: OpenAI's and Anthropic's API
// references.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <span>
#include <string>

#include "router/base/api_error.h"

namespace flotilla {

// The types of parts that are text: what chat, responses and messages call them.
inline constexpr const char* kTextPart[] = {"text"};
inline constexpr const char* kResponseParts[] = {"input_text", "output_text", "text"};

// Parts, {"type": one of `types`, "text": …}, are joined with line ends. `field`: the client's name
// for `content`.
std::optional<ApiError> ReadText(const boost::json::value& content, const std::string& field,
                                 std::span<const char* const> types, std::string* out);

}  // namespace flotilla
