#include "scheduler_proc/front/validate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/request_id.h"
#include "common/rpc/key_seed.h"
#include "scheduler_proc/exchange/random_id.h"

namespace flotilla {
namespace {

constexpr size_t kMaxKeyBytes = 255;
constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr int64_t kMaxDeadlineMs = 86'400'000;

Status Bad(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(field, ": ", what));
}

// lo ≤ value ≤ hi; a NaN is out of range.
Status InRange(std::string_view field, double value, double lo, double hi) {
  if (value >= lo && value <= hi) return OkStatus();
  return Bad(field, StrCat(value, " is not within ", lo, " … ", hi));
}

Status Above0(std::string_view field, double value, double hi) {
  if (value > 0 && value <= hi) return OkStatus();
  return Bad(field, StrCat(value, " is not above 0 and at most ", hi));
}

Status AtMostBytes(std::string_view field, const std::string& value, size_t max) {
  if (value.size() <= max) return OkStatus();
  return Bad(field, StrCat(value.size(), " bytes; at most ", max, " are allowed"));
}

Status CheckChoices(const v1::SamplingParams& in) {
  const int32_t n = in.has_n() ? in.n() : 1;
  RETURN_IF_ERROR(InRange("sampling.n", n, 1, kMaxChoices));
  if (in.has_best_of()) RETURN_IF_ERROR(InRange("sampling.best_of", in.best_of(), n, kMaxChoices));
  return OkStatus();
}

Status CheckPenalties(const v1::SamplingParams& in, SamplingParams* out) {
  RETURN_IF_ERROR(
      InRange("sampling.presence_penalty", in.presence_penalty(), -kMaxPenalty, kMaxPenalty));
  RETURN_IF_ERROR(
      InRange("sampling.frequency_penalty", in.frequency_penalty(), -kMaxPenalty, kMaxPenalty));
  out->presence_penalty = in.presence_penalty();
  out->frequency_penalty = in.frequency_penalty();
  if (!in.has_repetition_penalty()) return OkStatus();
  RETURN_IF_ERROR(InRange("sampling.repetition_penalty", in.repetition_penalty(),
                          kMinRepetitionPenalty, kMaxPenalty));
  out->repetition_penalty = in.repetition_penalty();
  return OkStatus();
}

Status CheckLogitBias(const v1::SamplingParams& in, uint32_t vocab_size,
                      std::vector<LogitBias>* out) {
  if (static_cast<uint32_t>(in.logit_bias_size()) > kMaxLogitBias)
    return Bad("sampling.logit_bias",
               StrCat(in.logit_bias_size(), " entries; at most ", kMaxLogitBias));
  for (const auto& [token, bias] : in.logit_bias()) {
    const std::string field = StrCat("sampling.logit_bias[", token, "]");
    if (token < 0 || static_cast<uint32_t>(token) >= vocab_size)
      return Bad(field, StrCat("not a token id of 0 … ", vocab_size - 1));
    RETURN_IF_ERROR(InRange(field, bias, -kMaxLogitBiasValue, kMaxLogitBiasValue));
    out->push_back({token, bias});
  }
  std::sort(out->begin(), out->end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  return OkStatus();
}

// Given, or from the idempotency key (a retry then draws the same), or random.
uint64_t SeedOf(const v1::GenerateRequest& request, float temperature) {
  if (request.sampling().has_seed()) return request.sampling().seed();
  if (temperature == 0) return 0;
  if (request.idempotency_key().empty()) return RandomU64();
  return SeedOfKey(request.idempotency_key());
}

Status CheckSampling(const v1::GenerateRequest& request, uint32_t vocab_size, ReqSpec* spec) {
  const v1::SamplingParams& in = request.sampling();
  SamplingParams* const out = &spec->sampling;
  if (in.has_temperature()) {
    RETURN_IF_ERROR(InRange("sampling.temperature", in.temperature(), 0, 2));
    out->temperature = in.temperature();
  }
  if (in.has_top_p()) {
    RETURN_IF_ERROR(Above0("sampling.top_p", in.top_p(), 1));
    out->top_p = in.top_p();
  }
  if (in.has_top_k()) {
    RETURN_IF_ERROR(InRange("sampling.top_k", in.top_k(), -1, vocab_size));
    out->top_k = static_cast<uint32_t>(std::max(0, in.top_k()));
  }
  if (in.has_min_p()) {
    RETURN_IF_ERROR(InRange("sampling.min_p", in.min_p(), 0, 1));
    out->min_p = in.min_p();
  }
  RETURN_IF_ERROR(CheckChoices(in));
  RETURN_IF_ERROR(CheckPenalties(in, out));
  RETURN_IF_ERROR(CheckLogitBias(in, vocab_size, &spec->logit_bias));
  out->seed = SeedOf(request, out->temperature);
  return OkStatus();
}

Status CheckOutput(const v1::OutputOptions& in, CheckedRequest* out) {
  if (in.has_logprobs()) {
    RETURN_IF_ERROR(InRange("output.logprobs", in.logprobs(), 0, kMaxLogprobs));
    out->spec.sampling.num_logprobs = static_cast<uint32_t>(in.logprobs());
    out->options.want_logprobs = true;
  }
  if (in.has_prompt_logprobs()) {
    RETURN_IF_ERROR(InRange("output.prompt_logprobs", in.prompt_logprobs(), 0, kMaxLogprobs));
    out->spec.sampling.num_prompt_logprobs = static_cast<uint32_t>(in.prompt_logprobs());
  }
  out->echo = in.echo();
  if (in.has_skip_special_tokens()) out->options.skip_special = in.skip_special_tokens();
  if (in.has_return_token_ids()) out->return_token_ids = in.return_token_ids();
  out->options.return_timing = in.return_timing();
  if (!out->choices.hide_logprobs) return OkStatus();
  out->spec.sampling.num_logprobs = 0;
  out->options.want_logprobs = true;
  return OkStatus();
}

Status CheckPrompt(const v1::GenerateRequest& request, const RequestLimits& limits,
                   const Tokenizer* tokenizer, std::vector<int32_t>* prompt) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return Bad("prompt", "missing; set text or token_ids");
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      RETURN_IF_ERROR(CheckTokenIds(ids, "token_ids.ids", limits.vocab_size));
      prompt->assign(ids.begin(), ids.end());
      if (prompt->empty()) return Bad("token_ids.ids", "empty; a prompt needs at least one token");
      break;
    }
    case v1::GenerateRequest::kText: {
      if (tokenizer == nullptr) return Bad("text", "this call takes token_ids");
      RETURN_IF_ERROR(CheckPromptBytes("text", request.text(), limits));
      StatusOr<std::vector<TokenId>> ids = tokenizer->Encode(request.text());
      if (!ids.ok()) return Bad("text", std::string(ids.status().message()));
      *prompt = *std::move(ids);
      if (prompt->empty()) return Bad("text", "empty; a prompt needs at least one token");
      break;
    }
  }
  return OkStatus();
}

// After the prompt: max_tokens depends on its length.
Status CheckStopping(const v1::StopParams& in, const RequestLimits& limits, CheckedRequest* out) {
  ReqSpec& spec = out->spec;
  const uint32_t prompt = static_cast<uint32_t>(spec.prompt_ids.size());
  if (prompt >= limits.context_length)
    return Bad("prompt", StrCat(prompt, " tokens; the context has ", limits.context_length,
                                " and the output needs at least one of them"));
  const uint32_t room = limits.context_length - prompt;
  spec.max_new_tokens = room;
  if (in.has_max_tokens()) {
    if (in.max_tokens() < 1 || static_cast<uint32_t>(in.max_tokens()) > room)
      return Bad("stopping.max_tokens",
                 StrCat(in.max_tokens(), " is not within 1 … ", room, " (the context has ",
                        limits.context_length, " tokens, the prompt ", prompt, ")"));
    spec.max_new_tokens = static_cast<uint32_t>(in.max_tokens());
  }
  RETURN_IF_ERROR(InRange("stopping.min_tokens", in.min_tokens(), 0, spec.max_new_tokens));
  spec.min_new_tokens = static_cast<uint32_t>(in.min_tokens());
  spec.sampling.min_tokens_until = spec.min_new_tokens == 0 ? 0 : prompt + spec.min_new_tokens;
  if (in.stop_size() > kMaxStops)
    return Bad("stopping.stop", StrCat(in.stop_size(), " strings; at most ", kMaxStops));
  for (int i = 0; i < in.stop_size(); ++i) {
    const std::string field = StrCat("stopping.stop[", i, "]");
    if (in.stop(i).empty()) return Bad(field, "empty");
    RETURN_IF_ERROR(AtMostBytes(field, in.stop(i), kMaxStopBytes));
  }
  if (static_cast<uint32_t>(in.stop_token_ids_size()) > kMaxPlanStopIds)
    return Bad("stopping.stop_token_ids",
               StrCat(in.stop_token_ids_size(), " ids; at most ", kMaxPlanStopIds));
  RETURN_IF_ERROR(CheckTokenIds(in.stop_token_ids(), "stopping.stop_token_ids", limits.vocab_size));
  spec.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  spec.ignore_eos = in.ignore_eos();
  out->options.stop.assign(in.stop().begin(), in.stop().end());
  out->options.stop_token_ids = spec.stop_token_ids;
  out->options.min_tokens = spec.min_new_tokens;
  out->options.include_stop = in.include_stop_str_in_output();
  return OkStatus();
}

Status CheckResume(const google::protobuf::RepeatedPtrField<v1::ResumeChoice>& resume,
                   const RequestLimits& limits, ReqSpec* spec) {
  if (resume.empty()) return OkStatus();
  if (resume.size() > 1) return Bad("resume", "a Submit is one choice");
  const v1::ResumeChoice& choice = resume[0];
  RETURN_IF_ERROR(CheckTokenIds(choice.output_ids(), "resume[0].output_ids", limits.vocab_size));
  if (!std::isfinite(choice.cumulative_logprob()))
    return Bad("resume[0].cumulative_logprob", "not a number");
  if (choice.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
    return Bad("resume[0].finish_reason", "the only choice is finished; nothing is left to run");
  if (static_cast<uint32_t>(choice.output_ids_size()) >= spec->max_new_tokens)
    return Bad(
        "resume[0].output_ids",
        StrCat(choice.output_ids_size(), " tokens; stopping.max_tokens is ", spec->max_new_tokens));
  spec->resumed_ids.assign(choice.output_ids().begin(), choice.output_ids().end());
  return OkStatus();
}

Status CheckEnvelope(const v1::GenerateRequest& request, const RequestLimits& limits,
                     CheckedRequest* out) {
  RETURN_IF_ERROR(CheckModel(request.model(), limits.model_name));
  if (!request.request_id().empty() && !IsRequestId(request.request_id()))
    return Bad("request_id", StrCat("not ", kRequestIdRule));
  RETURN_IF_ERROR(AtMostBytes("idempotency_key", request.idempotency_key(), kMaxKeyBytes));
  RETURN_IF_ERROR(AtMostBytes("session", request.session(), kMaxKeyBytes));
  RETURN_IF_ERROR(InRange("priority", request.priority(), -100, 100));
  out->spec.priority = request.priority();
  if (request.has_deadline_ms()) {
    if (request.deadline_ms() < 1 || request.deadline_ms() > kMaxDeadlineMs)
      return Bad("deadline_ms",
                 StrCat(request.deadline_ms(), " is not within 1 … ", kMaxDeadlineMs));
    out->deadline_ms = request.deadline_ms();
  }
  out->request_id = request.request_id().empty() ? NewRequestId() : request.request_id();
  return OkStatus();
}

}  // namespace

Status CheckModel(const std::string& model, const std::string& served) {
  if (model.empty() || model == served) return OkStatus();
  return absl::NotFoundError(StrCat("model: '", model, "' is not served here; '", served, "' is"));
}

Status CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, const char* field,
                     uint32_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < vocab_size) continue;
    return Bad(StrCat(field, "[", i, "]"),
               StrCat(ids[i], " is not a token id of 0 … ", vocab_size - 1));
  }
  return OkStatus();
}

StatusOr<CheckedRequest> CheckEmbed(const v1::GenerateRequest& request,
                                    const v1::EmbedOptions& embed, const RequestLimits& limits,
                                    const Tokenizer* tokenizer) {
  CheckedRequest out;
  RETURN_IF_ERROR(CheckEnvelope(request, limits, &out));
  if (request.has_sampling()) return Bad("sampling", "an embedding has none");
  if (request.has_stopping()) return Bad("stopping", "an embedding has none");
  if (request.has_output()) return Bad("output", "an embedding has none");
  if (request.has_structured()) return Bad("structured", "an embedding has none");
  RETURN_IF_ERROR(CheckPrompt(request, limits, tokenizer, &out.spec.prompt_ids));
  const size_t prompt = out.spec.prompt_ids.size();
  if (prompt > limits.context_length)
    return Bad("prompt", StrCat(prompt, " tokens; the context has ", limits.context_length));
  if (!v1::EmbedRequest::Pooling_IsValid(embed.pooling()))
    return Bad("pooling", StrCat(static_cast<int>(embed.pooling()), " is unknown"));
  const bool mean = embed.pooling() == v1::EmbedRequest::POOLING_MEAN;
  out.spec.pooling = mean ? Pooling::kMean : Pooling::kLast;
  out.options.embeds = true;
  out.options.normalize = embed.normalize();
  return out;
}

Status CheckPromptBytes(const std::string& field, const std::string& text,
                        const RequestLimits& limits) {
  if (text.size() <= limits.max_prompt_bytes) return OkStatus();
  return Bad(field, StrCat(text.size(), " bytes are more than the context of ",
                           limits.context_length, " tokens can hold"));
}

CheckedRequest ForCandidate(const CheckedRequest& checked, size_t index) {
  CheckedRequest candidate = checked;
  SamplingParams* sampling = &candidate.spec.sampling;
  sampling->seed = ChoiceSeed(sampling->seed, index);
  if (index > 0) sampling->num_prompt_logprobs = kNoLogprobs;
  return candidate;
}

StatusOr<CheckedRequest> CheckRequest(
    const v1::GenerateRequest& request,
    const google::protobuf::RepeatedPtrField<v1::ResumeChoice>& resume, const RequestLimits& limits,
    const Tokenizer* tokenizer) {
  CheckedRequest out;
  RETURN_IF_ERROR(CheckEnvelope(request, limits, &out));
  RETURN_IF_ERROR(CheckSampling(request, limits.vocab_size, &out.spec));
  out.choices = ChoicesOf(request);
  RETURN_IF_ERROR(CheckOutput(request.output(), &out));
  RETURN_IF_ERROR(CheckPrompt(request, limits, tokenizer, &out.spec.prompt_ids));
  RETURN_IF_ERROR(CheckStopping(request.stopping(), limits, &out));
  RETURN_IF_ERROR(CheckResume(resume, limits, &out.spec));
  if (request.has_structured()) {
    ASSIGN_OR_RETURN(out.grammar, ReadStructured(request.structured(), limits.max_grammar_bytes));
  }
  return out;
}

}  // namespace flotilla
