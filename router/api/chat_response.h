// /v1/chat/completions: pieces of an answer as OpenAI's chat JSON, streamed or whole.
//
// Threads: pure functions. Source: OpenAI's API reference; token_ids, prompt_logprobs and
// reasoning_content as vLLM.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/api/completions_response.h"

namespace flotilla {

// Appends one entry of logprobs.content: the token, its bytes, and the `top` most likely ones.
void AppendChatLogprob(const v1::TokenLogprobs& entry, const CompletionRequest& request,
                       std::string* out);

std::string ChatJson(const CompletionEnvelope& envelope, const CompletionRequest& request,
                     const std::vector<ChoicePiece>& choices, const AnswerEnd& end);
// "data: {…}\n\n". `first`: preceded by the chunk that says who speaks.
std::string ChatChunk(const CompletionEnvelope& envelope, const CompletionRequest& request,
                      size_t index, const ChoicePiece& piece, bool first);

// `envelope` and `request` must outlive the writer.
std::unique_ptr<AnswerWriter> MakeChatWriter(const CompletionEnvelope& envelope,
                                             const CompletionRequest& request);

}  // namespace flotilla
