// /v1/embeddings: the body's JSON as checked inputs with token ids, and the answer's JSON.
//
// Fields are OpenAI's, with `pooling` ("last", "mean") and `normalize` beside them;
// docs/embeddings.md lists them. Unknown fields are ignored. Threads: pure functions; a large body
// belongs on a worker thread. Errors: ApiError naming the field.
// Source: OpenAI's API reference; vLLM's OpenAI-compatible server documentation.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "flotilla/v1/engine.pb.h"
#include "router/api/completions_request.h"

namespace flotilla {

inline constexpr size_t kMaxInputsPerRequest = 2048;  // OpenAI's

struct EmbeddingsRequest {
  std::shared_ptr<const ModelHandle> model;
  std::vector<CompletionPrompt> inputs;  // embedding i is of input i
  v1::GenerateRequest params;            // all but prompt and request_id
  v1::EmbedOptions embed;
  bool base64 = false;  // else an array of numbers
};

std::variant<EmbeddingsRequest, ApiError> ParseEmbeddings(std::string_view body,
                                                          const ModelTable& models);

// A prompt that is to be embedded fits the model: it has tokens, and no more than the context.
std::optional<ApiError> CheckInputLength(size_t tokens, const ModelHandle& model,
                                         const std::string& field);

// What ended with another finish than the embedding.
std::optional<ApiError> EmbeddingFailure(const v1::Delta& last);

struct EmbeddingsAnswer {
  std::string id;
  int64_t created = 0;                                       // Unix seconds
  std::vector<google::protobuf::RepeatedField<float>> data;  // by input
  v1::Usage usage;
};
std::string EmbeddingsJson(const EmbeddingsRequest& request, const EmbeddingsAnswer& answer);

}  // namespace flotilla
