// What the bodies of /v1/completions and /v1/chat/completions have in common: the model, sampling,
// stopping, streaming and output fields, and wishes that no code fulfils yet.
//
// Threads: pure functions. Errors: ApiError naming the field; readers keep the first one.
// Source: OpenAI's API reference; vLLM's OpenAI-compatible server documentation.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "router/api/completions_request.h"
#include "router/base/json_reader.h"

namespace flotilla {

// Parses the body, which must be an object, into `root`; sets the model that it names. Where there
// is only one, it need not.
std::optional<ApiError> OpenRequest(std::string_view body, const ModelTable& models,
                                    boost::json::value* root, CompletionRequest* request);

// All common fields but max_tokens and logprobs, which each form spells in its own way. `reader`
// reads `body` and may have failed before.
std::optional<ApiError> ReadCommonFields(const boost::json::object& body, FieldReader* reader,
                                         CompletionRequest* request);

// Refuses wishes that no code fulfils yet. Neutral values (IsNeutral) are none.
std::optional<ApiError> CheckNotBuilt(const boost::json::object& body,
                                      std::span<const char* const> names);
// The same of those that all forms have in common.
std::optional<ApiError> CheckCommonNotBuilt(const boost::json::object& body);

}  // namespace flotilla
