// Anthropic's /v1/messages: pieces of an answer as a message of blocks, whole or as a stream of
// events, which tells the blocks one after the other.
//
// Threads: one at a time. Source: Anthropic's API reference, streaming.
#pragma once

#include <memory>

#include "router/api/completions_response.h"

namespace flotilla {

// `envelope` and `request` must outlive the writer.
std::unique_ptr<AnswerWriter> MakeMessagesWriter(const CompletionEnvelope& envelope,
                                                 const CompletionRequest& request);

}  // namespace flotilla
