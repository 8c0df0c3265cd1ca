// Structured output as clients write it: OpenAI's response_format, vLLM's structured_outputs, and
// the names that vLLM gave the latter's fields until version 0.11 (guided_json, guided_regex,
// guided_choice, guided_grammar), which clients still send.
//
// What is in a schema or grammar is the replica's business; its errors speak of
// v1::StructuredOutput's fields, and NameAsClient makes them speak of the client's. Threads: pure
// functions. Errors: ApiError naming the field. Source: OpenAI's API reference; vLLM's structured
// outputs documentation.
#pragma once

#include <boost/json/object.hpp>
#include <optional>

#include "router/api/completions_request.h"

namespace flotilla {

class FieldReader;

// Sets params.structured and structured_field if the body asks for it, in one way at most.
std::optional<ApiError> ReadStructuredOutput(const boost::json::object& body,
                                             CompletionRequest* request);

// The same from {"format": {"type": "text" | "json_object" | "json_schema", "schema": …}}, whose
// schema is not inside another object: `field` ("text" of responses) of what `reader` reads.
std::optional<ApiError> ReadTextFormat(FieldReader* reader, const char* field,
                                       CompletionRequest* request);

// `field`: request.structured_field.
void NameAsClient(const std::string& field, ApiError* error);

}  // namespace flotilla
