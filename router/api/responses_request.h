// /v1/responses: the body's JSON as a checked request, whose prompt is the rendered conversation.
//
// Nothing is stored: the whole conversation comes with each request, and what would need a stored
// one (previous_response_id, store, background …) is refused.
// Fields are OpenAI's and the sampling fields of /v1/completions; docs/responses.md lists them.
// Threads: pure functions; parsing belongs on a worker thread. Errors: ApiError naming the field.
// Source: OpenAI's API reference.
#pragma once

#include <string_view>
#include <variant>

#include "router/api/completions_request.h"

namespace flotilla {

std::variant<CompletionRequest, ApiError> ParseResponses(std::string_view body,
                                                         const ModelTable& models,
                                                         const ParserChoice& parsers);

}  // namespace flotilla
