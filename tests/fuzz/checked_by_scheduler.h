// The end of an HTTP body's way, for targets that parse one: an error that can be written as JSON,
// or a request that scheduler and workers accept too.
//
// Threads: one. Errors: CHECK.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "common/rpc/choices.h"
#include "router/completions_request.h"
#include "router/generate_check.h"
#include "router/json_reader.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fuzz/checked_by_worker.h"

namespace flotilla::fuzz {

// The one model there is: "m", with a context of kContext tokens.
inline ModelTable OneModel(StatusOr<ChatFormat> chat_format) {
  auto model = std::make_shared<ModelHandle>();
  model->name = "m";
  model->max_model_len = kContext;
  model->tokenizer = std::make_shared<testing::ByteVocabulary>();
  model->vocab_size = model->tokenizer->vocab_size();
  model->chat_format = std::move(chat_format);
  return {{model->name, std::move(model)}};
}

inline void CheckError(const ApiError& error) {
  const int status = HttpStatus(error);
  CHECK(status == 400 || status == 404 || status == 501);
  boost::json::value parsed;
  CHECK(!ParseJson(ErrorJson(error), &parsed).has_value());
  CHECK(!parsed.as_object().at("error").as_object().at("message").as_string().empty());
}

// As the dispatcher submits its choices, as the scheduler receives them.
inline void CheckAccepted(const CompletionRequest& request) {
  const RequestLimits limits = {.model_name = request.model->name,
                                .vocab_size = request.model->vocab_size,
                                .context_length = request.model->max_model_len};
  CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPromptsPerRequest);
  for (const CompletionPrompt& prompt : request.prompts) {
    v1::GenerateRequest sent = request.params;
    sent.mutable_token_ids()->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    SetSeed(/*random=*/7, &sent);
    const size_t num_candidates = ChoicesOf(sent).num_candidates;
    CHECK(request.prompts.size() * num_candidates <= kMaxChoicesPerRequest);
    for (const size_t i : {size_t{0}, num_candidates - 1}) {
      v1::GenerateRequest received;
      CHECK(received.ParseFromString(ChoiceRequest(sent, i).SerializeAsString()));
      const auto checked = CheckRequest(received, {}, limits, nullptr);
      CHECK_OK(checked.status());
      CHECK(checked->choices.num_candidates == 1);
      CheckByWorker(*checked, limits);
    }
  }
}

inline void CheckParsed(const std::variant<CompletionRequest, ApiError>& parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed))
    CheckError(*error);
  else
    CheckAccepted(std::get<CompletionRequest>(parsed));
}

}  // namespace flotilla::fuzz
