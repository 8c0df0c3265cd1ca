// /v1/responses: pieces of an answer as OpenAI's response object, whole or as a stream of events.
//
// An answer is a list of items: what was thought, what was said, each call. A stream tells each
// from its beginning to its end, one after the other, and numbers its events.
// Threads: one at a time. Source: OpenAI's API reference, streaming events.
#pragma once

#include <memory>

#include "router/api/completions_response.h"

namespace flotilla {

// `envelope` and `request` must outlive the writer.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(const CompletionEnvelope& envelope,
                                                  const CompletionRequest& request);

}  // namespace flotilla
