#include "router/api/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "common/base/sha256.h"
#include "router/api/generate_check.h"
#include "router/api/structured_fields.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

// Known wishes that no code fulfils yet, if they are no neutral values.
constexpr std::array<const char*, 25> kFieldsNotBuilt = {
    // OpenAI's and vLLM's
    "suffix", "logprob_token_ids", "guided_whitespace_pattern", "vllm_xargs", "use_beam_search",
    "bad_words", "allowed_token_ids", "logits_processors", "truncate_prompt_tokens", "cache_salt",
    "prompt_embeds", "kv_transfer_params", "return_hidden_states", "repetition_detection",
    // SGLang's
    "stop_regex", "lora_path", "custom_logit_processor",
    // llama.cpp's
    "samplers", "lora", "n_probs", "mirostat", "dry_multiplier", "xtc_probability",
    "dynatemp_range", "t_max_predict_ms"};

// The same of numbers whose neutral value is another than 0.
struct NeutralNumber {
  const char* name;
  double neutral;
};
constexpr NeutralNumber kNumbersNotBuilt[] = {
    {"length_penalty", 1},  // of beams, which are none here
    {"typical_p", 1},
    {"tfs_z", 1},
    {"top_n_sigma", -1},  // llama.cpp's
};

ApiError NotBuilt(const char* name) {
  return NotBuiltYet(name, StrCat("'", name, "' is not built yet; leave it out."));
}

// {"<token id>": number}, as OpenAI's. Ranges are generate_check's business.
void ReadLogitBias(FieldReader* reader, v1::SamplingParams* out) {
  const json::object* entries = reader->Object("logit_bias");
  if (entries == nullptr) return;
  if (entries->size() > kMaxLogitBiasTokens) {
    reader->Fail("logit_bias", StrCat("may have at most ", kMaxLogitBiasTokens, " tokens, not ",
                                      entries->size()));
    return;
  }
  for (const auto& [key, value] : *entries) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size()) {
      reader->Fail("logit_bias", StrCat("must have token ids as keys, not '",
                                        std::string(key.substr(0, 64)), "'"));
      return;
    }
    if (!value.is_number()) {
      reader->Fail("logit_bias", StrCat("must have numbers as values; token ", token, " has none"));
      return;
    }
    const double bias = std::clamp(value.to_number<double>(), -1e9, 1e9);
    if (!out->mutable_logit_bias()->insert({token, static_cast<float>(bias)}).second) {
      reader->Fail("logit_bias", StrCat("has token ", token, " twice"));
      return;
    }
  }
}

void ReadStopStrings(FieldReader* reader, v1::StopParams* out) {
  const json::value* value = reader->Find("stop");
  if (value == nullptr) return;
  auto add = [&](const json::value& entry) {
    if (!entry.is_string()) {
      reader->Fail("stop", "must be a string or an array of strings");
      return false;
    }
    out->add_stop(entry.get_string().data(), entry.get_string().size());
    return true;
  };
  if (!value->is_array()) {
    add(*value);
    return;
  }
  if (value->get_array().size() > kMaxStopStrings) {
    reader->Fail("stop", StrCat("may have at most ", kMaxStopStrings, " strings"));
    return;
  }
  for (const json::value& entry : value->get_array()) {
    if (!add(entry)) return;
  }
}

// What --policy consistent_hash keeps together: OpenAI's key of a common prompt, else the user.
void ReadSession(FieldReader* reader, v1::GenerateRequest* out) {
  const std::optional<std::string_view> user = reader->String("user");
  const std::optional<std::string_view> key = reader->String("prompt_cache_key");
  const std::string_view session = key.value_or(user.value_or(""));
  out->set_session(session.size() <= kMaxSessionBytes ? std::string(session) : Sha256Hex(session));
}

// -1 is llama.cpp's and vLLM's word for any.
void ReadSeed(FieldReader* reader, v1::SamplingParams* out) {
  const json::value* value = reader->Find("seed");
  if (value != nullptr && AsInt(*value, -1, -1).has_value()) return;
  if (auto v = reader->Uint64("seed")) out->set_seed(*v);
}

void ReadSampling(FieldReader* reader, v1::SamplingParams* out) {
  if (auto v = reader->Number("temperature")) out->set_temperature(static_cast<float>(*v));
  if (auto v = reader->Number("top_p")) out->set_top_p(static_cast<float>(*v));
  if (auto v = reader->Int("top_k", INT32_MIN, INT32_MAX)) out->set_top_k(static_cast<int>(*v));
  if (auto v = reader->Number("min_p")) out->set_min_p(static_cast<float>(*v));
  if (auto v = reader->Number("presence_penalty"))
    out->set_presence_penalty(static_cast<float>(*v));
  if (auto v = reader->Number("frequency_penalty"))
    out->set_frequency_penalty(static_cast<float>(*v));
  for (const char* name : {"repeat_penalty", "repetition_penalty"}) {  // llama.cpp's, vLLM's
    if (auto v = reader->Number(name)) out->set_repetition_penalty(static_cast<float>(*v));
  }
  ReadLogitBias(reader, out);
  ReadSeed(reader, out);
  if (auto v = reader->Int("n", INT32_MIN, INT32_MAX)) out->set_n(static_cast<int>(*v));
  if (auto v = reader->Int("best_of", INT32_MIN, INT32_MAX)) out->set_best_of(static_cast<int>(*v));
}

void ReadStopping(FieldReader* reader, v1::StopParams* out) {
  if (auto v = reader->Int("min_tokens", INT32_MIN, INT32_MAX))
    out->set_min_tokens(static_cast<int>(*v));
  if (auto v = reader->Bool("ignore_eos")) out->set_ignore_eos(*v);
  for (const char* name : {"no_stop_trim", "include_stop_str_in_output"}) {  // SGLang's, vLLM's
    if (auto v = reader->Bool(name)) out->set_include_stop_str_in_output(*v);
  }
  if (auto v = reader->Ints("stop_token_ids", kMaxStopTokenIds, INT32_MIN, INT32_MAX))
    out->mutable_stop_token_ids()->Add(v->begin(), v->end());
  ReadStopStrings(reader, out);
}

void ReadOutput(FieldReader* reader, CompletionRequest* request) {
  v1::OutputOptions* out = request->params.mutable_output();
  if (auto v = reader->Int("prompt_logprobs", INT32_MIN, INT32_MAX)) request->prompt_logprobs = *v;
  if (request->prompt_logprobs.has_value()) out->set_prompt_logprobs(*request->prompt_logprobs);
  out->set_skip_special_tokens(reader->Bool("skip_special_tokens").value_or(true));
  out->set_return_token_ids(true);
  out->set_return_timing(reader->Bool("return_timing").value_or(false));
  request->return_token_ids = reader->Bool("return_token_ids").value_or(false);
  request->return_tokens_as_token_ids = reader->Bool("return_tokens_as_token_ids").value_or(false);
}

void ReadStream(FieldReader* reader, CompletionRequest* request, MaybeError* error) {
  request->stream = reader->Bool("stream").value_or(false);
  if (const json::object* options = reader->Object("stream_options")) {
    if (!request->stream) {
      reader->Fail("stream_options", "needs 'stream': true");
      return;
    }
    FieldReader inner(*options, "stream_options.");
    request->include_usage = inner.Bool("include_usage").value_or(false);
    request->continuous_usage =
        inner.Bool("continuous_usage_stats").value_or(false) && request->include_usage;
    *error = inner.error();
  }
  if (request->stream && request->prompt_logprobs.has_value())
    reader->Fail("prompt_logprobs", "is not available with 'stream': true");
  const v1::SamplingParams& sampling = request->params.sampling();
  if (request->stream && sampling.best_of() > (sampling.has_n() ? sampling.n() : 1))
    reader->Fail("best_of", "can't be more than 'n' with 'stream': true");
}

}  // namespace

std::optional<ApiError> OpenRequest(std::string_view body, const ModelTable& models,
                                    json::value* root, CompletionRequest* request) {
  if (auto error = ParseJson(body, root)) return error;
  if (!root->is_object()) return InvalidField("", "The body must be a JSON object.");
  FieldReader reader(root->get_object());
  const std::optional<std::string_view> name = reader.String("model");
  if (!name.has_value() && models.size() > 1)
    reader.Fail("model", StrCat("is missing, and there are ", NamesOf(models)));
  if (reader.error().has_value()) return reader.error();
  if (name == "") return InvalidField("model", "'model' is empty.");
  auto model = FindModel(models, name.value_or(""));
  if (auto* error = std::get_if<ApiError>(&model)) return *error;
  request->model = std::get<std::shared_ptr<const ModelHandle>>(model);
  request->params.set_model(request->model->name);
  return std::nullopt;
}

std::optional<ApiError> CheckNotBuilt(const json::object& body,
                                      std::span<const char* const> names) {
  for (const char* name : names) {
    const json::value* value = body.if_contains(name);
    if (value != nullptr && !IsNeutral(*value)) return NotBuilt(name);
  }
  return std::nullopt;
}

std::optional<ApiError> CheckCommonNotBuilt(const json::object& body) {
  for (const NeutralNumber& number : kNumbersNotBuilt) {
    const json::value* value = body.if_contains(number.name);
    if (value == nullptr || IsNeutral(*value)) continue;
    if (!value->is_number() || value->to_number<double>() != number.neutral)
      return NotBuilt(number.name);
  }
  if (const json::value* n_predict = body.if_contains("n_predict");
      n_predict && !n_predict->is_null())
    return InvalidField("n_predict", "'n_predict' is called 'max_tokens' here.");
  return CheckNotBuilt(body, kFieldsNotBuilt);
}

std::optional<ApiError> ReadCommonFields(const json::object& body, FieldReader* reader,
                                         CompletionRequest* request) {
  std::optional<ApiError> inner;
  ReadSession(reader, &request->params);
  ReadSampling(reader, request->params.mutable_sampling());
  SetModelSampling(*request->model, request->params.mutable_sampling());
  ReadStopping(reader, request->params.mutable_stopping());
  ReadOutput(reader, request);
  ReadStream(reader, request, &inner);
  if (auto v = reader->Int("priority", INT32_MIN, INT32_MAX))
    request->params.set_priority(static_cast<int>(*v));
  if (reader->error().has_value()) return reader->error();
  if (inner.has_value()) return inner;
  if (auto error = ReadStructuredOutput(body, request)) return error;
  if (!request->chat && reader->Find("thinking_token_budget") != nullptr)
    return InvalidField(
        "thinking_token_budget",
        "'thinking_token_budget' is for chats: only their templates show thoughts.");
  return CheckCommonNotBuilt(body);
}

}  // namespace flotilla
