// Anthropic's /v1/messages and its count_tokens: the body's JSON as a checked request, whose prompt
// is the rendered conversation.
//
// Fields are Anthropic's and the sampling fields of /v1/completions; docs/messages.md lists them.
// Threads: pure functions; parsing belongs on a worker thread. Errors: ApiError naming the field.
// Source: Anthropic's API reference.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "router/api/completions_request.h"

namespace flotilla {

std::variant<CompletionRequest, ApiError> ParseMessages(std::string_view body,
                                                        const ModelTable& models,
                                                        const ParserChoice& parsers);

// The answer to count_tokens.
std::variant<std::string, ApiError> CountTokens(std::string_view body, const ModelTable& models,
                                                const ParserChoice& parsers);

}  // namespace flotilla
