// The end of an HTTP body's way, for targets that parse one: an error that can be written as JSON,
// or a request that scheduler and workers accept too.
//
// Threads: one. Errors: CHECK.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "common/rpc/choices.h"
#include "router/api/completions_request.h"
#include "router/api/embeddings_request.h"
#include "router/api/generate_check.h"
#include "router/base/json_reader.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fuzz/checked_by_worker.h"

namespace flotilla::fuzz {

inline constexpr uint32_t kHiddenSize = 2;

// The one model there is: "m", with a context of kContext tokens.
inline ModelTable OneModel(StatusOr<ChatFormat> chat_format) {
  auto model = std::make_shared<ModelHandle>();
  model->name = "m";
  model->max_model_len = kContext;
  model->tokenizer = std::make_shared<testing::ByteVocabulary>();
  model->vocab_size = model->tokenizer->vocab_size();
  model->hidden_size = kHiddenSize;
  model->structural_tags = true;
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

inline RequestLimits LimitsOf(const ModelHandle& model) {
  return {.model_name = model.name,
          .vocab_size = model.vocab_size,
          .context_length = model.max_model_len};
}

// As the dispatcher submits its choices, as the scheduler receives them.
inline void CheckAccepted(const CompletionRequest& request) {
  const RequestLimits limits = LimitsOf(*request.model);
  CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPromptsPerRequest);
  for (const CompletionPrompt& prompt : request.prompts) {
    v1::GenerateRequest sent = request.params;
    SetDefaultMaxTokens(request, prompt.ids.size(), &sent);
    sent.mutable_token_ids()->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    SetSeed(/*random=*/7, &sent);
    const size_t num_candidates = ChoicesOf(sent).num_candidates;
    CHECK(request.prompts.size() * num_candidates <= kMaxChoicesPerRequest);
    for (const size_t i : {size_t{0}, num_candidates - 1}) {
      v1::GenerateRequest received;
      CHECK(received.ParseFromString(ChoiceRequest(sent, i).SerializeAsString()));
      const auto checked = CheckRequest(received, {}, limits, nullptr);
      // What is in a schema is the scheduler's business alone.
      const absl::string_view message = checked.status().message();
      if (received.has_structured() && absl::StartsWith(message, "structured")) continue;
      CHECK_OK(checked.status());
      CHECK(checked->choices.num_candidates == 1);
      CheckByWorker(*checked, limits);
    }
  }
}

// As EmbeddingsHandler submits its inputs, and what is answered.
inline void CheckAccepted(const EmbeddingsRequest& request) {
  const RequestLimits limits = LimitsOf(*request.model);
  CHECK(!request.inputs.empty() && request.inputs.size() <= kMaxInputsPerRequest);
  EmbeddingsAnswer answer;
  for (const CompletionPrompt& input : request.inputs) {
    v1::Submit sent;
    *sent.mutable_request() = request.params;
    sent.mutable_request()->mutable_token_ids()->mutable_ids()->Add(input.ids.begin(),
                                                                    input.ids.end());
    *sent.mutable_embed() = request.embed;
    v1::Submit received;
    CHECK(received.ParseFromString(sent.SerializeAsString()));
    const auto checked = CheckEmbed(received.request(), received.embed(), limits, nullptr);
    CHECK_OK(checked.status());
    CheckByWorker(*checked, limits);
    answer.data.emplace_back().Add(0.5f);
  }
  for (const auto reason :
       {v1::FINISH_REASON_STOP, v1::FINISH_REASON_ABORT, v1::FINISH_REASON_DEADLINE}) {
    v1::Delta failed;
    failed.add_choices()->set_finish_reason(reason);
    CHECK(EmbeddingFailure(failed).has_value());
  }
  boost::json::value parsed;
  CHECK(!ParseJson(EmbeddingsJson(request, answer), &parsed).has_value());
  CHECK(parsed.as_object().at("data").as_array().size() == request.inputs.size());
}

template <typename Request>
void CheckParsed(const std::variant<Request, ApiError>& parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed))
    CheckError(*error);
  else
    CheckAccepted(std::get<Request>(parsed));
}

}  // namespace flotilla::fuzz
