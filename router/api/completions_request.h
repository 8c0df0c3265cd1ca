// /v1/completions: the body's JSON as a checked request with token ids.
//
// Fields are those of OpenAI's completions and of vLLM's extensions to them; docs/completions.md
// lists them. Unknown fields are ignored, as both do; a known field that asks for what is not built
// is refused, so that nobody gets an answer that silently ignores a wish. null means
// absent. Threads: pure functions; parsing and tokenising a large body belongs on a worker thread.
// Errors: ApiError naming the field.
// Source: OpenAI's API reference; vLLM's OpenAI-compatible server documentation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "flotilla/v1/inference.pb.h"
#include "router/answer/answer_parser.h"
#include "router/api/prompt_field.h"
#include "router/base/api_error.h"
#include "router/base/model_handle.h"

namespace flotilla {

inline constexpr size_t kMaxPromptsPerRequest = 128;
// Prompts times best_of: each is a request to a replica.
inline constexpr size_t kMaxChoicesPerRequest = 512;

// By name. Immutable once published.
using ModelTable = std::map<std::string, std::shared_ptr<const ModelHandle>, std::less<>>;
// "'a', 'b'": not more of them than a message should have.
std::string NamesOf(const ModelTable& models);

// NOT_FOUND for an unknown name; UNAVAILABLE while no model is known at all. An empty name is the
// only model, if there is one.
std::variant<std::shared_ptr<const ModelHandle>, ApiError> FindModel(const ModelTable& models,
                                                                     std::string_view name);

// A request of either form: /v1/completions, or /v1/chat/completions, whose prompt is the rendered
// conversation.
struct CompletionRequest {
  bool chat = false;
  std::shared_ptr<const ModelHandle> model;
  std::vector<CompletionPrompt> prompts;  // choices p * n … p * n + n - 1 answer prompt p
  v1::GenerateRequest params;             // all but prompt and request_id; max_tokens fits each
  bool default_max_tokens = false;        // it is a default, of which each prompt gets what fits
  std::string structured_field;           // the client's name for params.structured
  AnswerSyntax syntax;                    // of chat
  std::string repeated;                   // fields that the answer repeats, a JSON object
  std::optional<int> logprobs;            // of output, and of the prompt with echo
  std::optional<int> prompt_logprobs;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with include_usage: each piece has the usage so far
  bool echo = false;
  bool prompt_only = false;  // max_tokens 0: one token is computed and thrown away
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;

  bool NeedsPromptLogprobs() const {
    return prompt_logprobs.has_value() || (echo && logprobs.has_value());
  }
};

// What of the default a prompt's context leaves, if the client set none.
void SetDefaultMaxTokens(const CompletionRequest& request, size_t prompt_tokens,
                         v1::GenerateRequest* params);

std::variant<CompletionRequest, ApiError> ParseCompletion(std::string_view body,
                                                          const ModelTable& models);

}  // namespace flotilla
