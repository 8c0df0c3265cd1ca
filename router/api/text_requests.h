// Requests that need a model's tokenizer or chat template and no replica: /tokenize, /detokenize
// and /apply-template.
//
// Bodies and answers are vLLM's; /apply-template's are llama.cpp's server's. docs/tokenize.md lists
// the fields. Threads: pure functions; they belong on a worker thread. Errors: ApiError naming the
// field.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "router/api/completions_request.h"

namespace flotilla {

using TextAnswer = std::variant<std::string, ApiError>;  // JSON

TextAnswer Tokenize(std::string_view body, const ModelTable& models, const ParserChoice& parsers);
TextAnswer Detokenize(std::string_view body, const ModelTable& models, const ParserChoice& parsers);
TextAnswer ApplyTemplate(std::string_view body, const ModelTable& models,
                         const ParserChoice& parsers);

}  // namespace flotilla
