// The APIs over HTTP. One that answers with generated text is a parser, which makes the same
// CompletionRequest of its body, and a writer of answers; all between them is CompletionHandler's.
// One that needs no replica is a function.
//
// Threads: constant; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "router/api/completions_request.h"
#include "router/api/completions_response.h"

namespace flotilla {

struct ApiForm {
  using Parsed = std::variant<CompletionRequest, ApiError>;

  const char* path;
  const char* id_prefix;  // of answers
  bool renders;           // through the model's chat template
  Parsed (*parse)(std::string_view body, const ModelTable& models, const ParserChoice& parsers);
  // Envelope and request outlive the writer.
  std::unique_ptr<AnswerWriter> (*make_writer)(const CompletionEnvelope& envelope,
                                               const CompletionRequest& request);
};

// Null: nothing is generated at that path.
const ApiForm* FindApiForm(std::string_view path);

struct TextForm {
  const char* path;
  std::variant<std::string, ApiError> (*answer)(std::string_view body, const ModelTable& models,
                                                const ParserChoice& parsers);  // JSON
};
const TextForm* FindTextForm(std::string_view path);

}  // namespace flotilla
