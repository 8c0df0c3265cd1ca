// gRPC's Chat: a ChatRequest → the prompt and all that tools make of a request, as
// /v1/chat/completions has them.
//
// A request that does not ask for this (common/rpc's AsksAsHttp) has its tools shown to the
// template unread, and its answer is the text that the model wrote. Threads: pure functions;
// rendering and tokenising take their time. Errors: ApiError naming ChatRequest's field.
#pragma once

#include <optional>

#include "common/rpc/render_chat.h"
#include "flotilla/v1/inference.pb.h"
#include "router/api/chat_request.h"

namespace flotilla {

// The conversation becomes the request's prompt. `request` has its model, and chat.base for params;
// `syntax` and `structured_field` of it are set if AsksAsHttp.
std::optional<ApiError> SetChatPrompt(const v1::ChatRequest& chat, const ParserChoice& parsers,
                                      CompletionRequest* request);

}  // namespace flotilla
