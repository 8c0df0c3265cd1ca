#include "router/api/generate_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/request_id.h"
#include "common/rpc/choices.h"
#include "common/rpc/key_seed.h"
#include "router/base/request_key.h"

namespace flotilla {
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError OutOfRange(std::string_view field, std::string_view range) {
  return InvalidField(std::string(field),
                      StrCat("'", std::string(field), "' must be ", std::string(range), "."));
}

bool Within(double value, double min, double max) { return value >= min && value <= max; }

MaybeError CheckPenalties(const v1::SamplingParams& s) {
  if (s.has_presence_penalty() && !Within(s.presence_penalty(), -2, 2))
    return OutOfRange("presence_penalty", "a number from -2 to 2");
  if (s.has_frequency_penalty() && !Within(s.frequency_penalty(), -2, 2))
    return OutOfRange("frequency_penalty", "a number from -2 to 2");
  if (s.has_repetition_penalty() &&
      !(s.repetition_penalty() >= 0.01f && s.repetition_penalty() <= 2))
    return OutOfRange("repetition_penalty", "a number from 0.01 to 2");
  return std::nullopt;
}

MaybeError CheckLogitBias(const v1::SamplingParams& s, const ModelHandle& model) {
  if (static_cast<size_t>(s.logit_bias_size()) > kMaxLogitBiasTokens)
    return OutOfRange("logit_bias", StrCat("at most ", kMaxLogitBiasTokens, " tokens"));
  for (const auto& [token, bias] : s.logit_bias()) {
    if (auto error = CheckTokenIds({&token, 1}, "logit_bias", model)) return error;
    if (!Within(bias, -100, 100))
      return OutOfRange("logit_bias",
                        StrCat("numbers from -100 to 100, and token ", token, " has a ", bias));
  }
  return std::nullopt;
}

MaybeError CheckSampling(const v1::SamplingParams& s, const ModelHandle& model) {
  if (s.has_temperature() && !Within(s.temperature(), 0, 2))
    return OutOfRange("temperature", "a number from 0 to 2");
  if (s.has_top_p() && !(s.top_p() > 0 && s.top_p() <= 1))
    return OutOfRange("top_p", "a number above 0 and at most 1");
  if (s.has_top_k() && (s.top_k() < -1 || s.top_k() > static_cast<int64_t>(model.vocab_size)))
    return OutOfRange("top_k", StrCat("an integer from -1 to ", model.vocab_size));
  if (s.has_min_p() && !Within(s.min_p(), 0, 1)) return OutOfRange("min_p", "a number from 0 to 1");
  const int n = s.has_n() ? s.n() : 1;
  if (n < 1 || n > kMaxChoices)
    return OutOfRange("n", StrCat("an integer from 1 to ", kMaxChoices));
  if (s.has_best_of() && (s.best_of() < n || s.best_of() > kMaxChoices))
    return OutOfRange("best_of", StrCat("an integer from ", n, " (n) to ", kMaxChoices));
  if (auto error = CheckPenalties(s)) return error;
  return CheckLogitBias(s, model);
}

MaybeError CheckStopping(const v1::StopParams& s, const ModelHandle& model) {
  if (s.has_max_tokens() && s.max_tokens() < 1)
    return OutOfRange("max_tokens", "an integer of at least 1");
  if (s.has_min_tokens() && s.min_tokens() < 0)
    return OutOfRange("min_tokens", "an integer of at least 0");
  if (s.has_max_tokens() && s.min_tokens() > s.max_tokens())
    return OutOfRange("min_tokens", StrCat("at most max_tokens (", s.max_tokens(), ")"));
  if (static_cast<size_t>(s.stop_size()) > kMaxStopStrings)
    return OutOfRange("stop", StrCat("at most ", kMaxStopStrings, " strings"));
  for (const std::string& stop : s.stop()) {
    if (stop.empty() || stop.size() > kMaxStopBytes)
      return OutOfRange("stop", StrCat("strings of 1 to ", kMaxStopBytes, " bytes"));
  }
  if (static_cast<size_t>(s.stop_token_ids_size()) > kMaxStopTokenIds)
    return OutOfRange("stop_token_ids", StrCat("at most ", kMaxStopTokenIds, " ids"));
  const auto& ids = s.stop_token_ids();
  return CheckTokenIds({ids.data(), static_cast<size_t>(ids.size())}, "stop_token_ids", model);
}

MaybeError CheckOutput(const v1::OutputOptions& o) {
  if (o.has_logprobs() && !Within(o.logprobs(), 0, 20))
    return OutOfRange("logprobs", "an integer from 0 to 20");
  if (o.has_prompt_logprobs() && !Within(o.prompt_logprobs(), 0, 20))
    return OutOfRange("prompt_logprobs", "an integer from 0 to 20");
  return std::nullopt;
}

}  // namespace

MaybeError CheckTokenIds(std::span<const int32_t> ids, std::string_view field,
                         const ModelHandle& model) {
  for (int32_t id : ids) {
    if (id < 0 || id >= static_cast<int64_t>(model.vocab_size))
      return OutOfRange(
          field, StrCat("token ids from 0 to ", model.vocab_size - 1, ", and there is a ", id));
  }
  return std::nullopt;
}

MaybeError CheckPromptBytes(std::string_view text, std::string_view field,
                            const ModelHandle& model) {
  if (text.size() <= model.max_prompt_bytes) return std::nullopt;
  const std::string name(field);
  return ContextExceeded(
      name, model, StrCat("'", name, "' has ", text.size(), " bytes, more than these can hold"));
}

ApiError ContextExceeded(std::string field, const ModelHandle& model, std::string_view what) {
  ApiError error = InvalidField(
      std::move(field), StrCat("This model's maximum context length is ", model.max_model_len,
                               " tokens; ", std::string(what), "."));
  error.type_code = kContextExceeded;
  return error;
}

MaybeError CheckParams(const v1::GenerateRequest& request, const ModelHandle& model) {
  if (!request.request_id().empty() && !IsRequestId(request.request_id()))
    return OutOfRange("request_id", kRequestIdRule);
  if (auto error = CheckSampling(request.sampling(), model)) return error;
  if (auto error = CheckStopping(request.stopping(), model)) return error;
  if (auto error = CheckOutput(request.output())) return error;
  if (request.has_priority() && !Within(request.priority(), -100, 100))
    return OutOfRange("priority", "an integer from -100 to 100");
  if (request.has_deadline_ms() &&
      (request.deadline_ms() < 1 || request.deadline_ms() > 86'400'000))
    return OutOfRange("deadline_ms", "from 1 to 86400000");
  if (request.idempotency_key().size() > kMaxIdempotencyKeyBytes)
    return OutOfRange("idempotency_key", StrCat("at most ", kMaxIdempotencyKeyBytes, " bytes"));
  if (request.session().size() > kMaxSessionBytes)
    return OutOfRange("session", "at most 255 bytes");
  return std::nullopt;
}

MaybeError CheckStructured(const v1::GenerateRequest& request, const ModelHandle& model,
                           const std::string& field) {
  const v1::StructuredOutput& output = request.structured();
  if (output.has_structural_tag() && !model.structural_tags)
    return InvalidField(field.empty() ? "structured" : field,
                        "Structural tags need replicas of this router's version.");
  size_t bytes = output.json_schema().size() + output.regex().size() + output.ebnf().size() +
                 output.structural_tag().size();
  for (const std::string& option : output.choice().options()) bytes += option.size();
  if (bytes <= model.max_grammar_bytes) return std::nullopt;
  return OutOfRange(
      field.empty() ? "structured" : field,
      StrCat("shorter: ", bytes, " bytes, and at most ", model.max_grammar_bytes, " are allowed"));
}

MaybeError FitToContext(size_t prompt_tokens, const ModelHandle& model,
                        v1::GenerateRequest* request, const std::string& field) {
  if (prompt_tokens == 0)
    return InvalidField(field, StrCat("'", field, "' is empty: at least one token is needed."));
  const size_t context = model.max_model_len;
  if (prompt_tokens >= context)
    return ContextExceeded(
        field, model,
        StrCat("'", field, "' has ", prompt_tokens, ", which leaves no room for an answer"));
  v1::StopParams* stopping = request->mutable_stopping();
  if (!stopping->has_max_tokens())
    stopping->set_max_tokens(static_cast<int32_t>(context - prompt_tokens));
  const auto max_tokens = static_cast<size_t>(stopping->max_tokens());
  if (prompt_tokens + max_tokens > context)
    return ContextExceeded("max_tokens", model,
                           StrCat("the prompt's ", prompt_tokens, " and 'max_tokens' ", max_tokens,
                                  " are ", prompt_tokens + max_tokens, " together"));
  if (stopping->min_tokens() > stopping->max_tokens())
    return OutOfRange("min_tokens", StrCat("at most max_tokens (", max_tokens, ")"));
  return std::nullopt;
}

void SetModelSampling(const ModelHandle& model, v1::SamplingParams* sampling) {
  const SamplingDefaults& of = model.sampling;
  if (of.temperature && !sampling->has_temperature()) sampling->set_temperature(*of.temperature);
  if (of.top_p && !sampling->has_top_p()) sampling->set_top_p(*of.top_p);
  if (of.min_p && !sampling->has_min_p()) sampling->set_min_p(*of.min_p);
  if (of.repetition_penalty && !sampling->has_repetition_penalty())
    sampling->set_repetition_penalty(*of.repetition_penalty);
  if (of.top_k && !sampling->has_top_k())
    sampling->set_top_k(std::min(*of.top_k, static_cast<int32_t>(model.vocab_size)));
}

void SetSeed(uint64_t random, v1::GenerateRequest* request) {
  v1::SamplingParams* sampling = request->mutable_sampling();
  if (sampling->has_seed()) return;
  const bool greedy = sampling->has_temperature() && sampling->temperature() == 0;
  const std::string& key = request->idempotency_key();
  sampling->set_seed(greedy ? 0 : key.empty() ? random : SeedOfKey(key));
}

}  // namespace flotilla
