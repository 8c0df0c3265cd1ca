#include "router/completions_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "router/generate_check.h"
#include "router/json_reader.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

bool IsNeutral(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
    default:
      return value.to_number<double>() == 0;
  }
}

// Known wishes that no code fulfils yet. Absent, null, false, 0 and empty mean "not wished".
constexpr std::array<const char*, 14> kNotBuilt = {"suffix",
                                                   "guided_json",
                                                   "guided_regex",
                                                   "guided_choice",
                                                   "guided_grammar",
                                                   "structured_outputs",
                                                   "use_beam_search",
                                                   "bad_words",
                                                   "allowed_token_ids",
                                                   "logits_processors",
                                                   "truncate_prompt_tokens",
                                                   "prompt_embeds",
                                                   "kv_transfer_params",
                                                   "return_hidden_states"};

MaybeError CheckNotBuilt(const json::object& body) {
  for (const char* name : kNotBuilt) {
    const json::value* value = body.if_contains(name);
    if (value != nullptr && !IsNeutral(*value))
      return NotBuiltYet(name, StrCat("'", name, "' is not built yet; leave it out."));
  }
  const json::value* format = body.if_contains("response_format");
  if (format == nullptr || format->is_null()) return std::nullopt;
  const json::value* type =
      format->is_object() ? format->get_object().if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string())
    return InvalidField("response_format", "'response_format' must be an object with a 'type'.");
  if (type->get_string() != "text")
    return NotBuiltYet("response_format",
                       "'response_format' other than {\"type\":\"text\"} is not built yet.");
  return std::nullopt;
}

// {"<token id>": number}, as OpenAI's. Ranges are generate_check's business.
void ReadLogitBias(FieldReader* reader, v1::SamplingParams* out) {
  const json::object* entries = reader->Object("logit_bias");
  if (entries == nullptr) return;
  if (entries->size() > kMaxLogitBias) {
    reader->Fail("logit_bias",
                 StrCat("may have at most ", kMaxLogitBias, " tokens, not ", entries->size()));
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

void ReadSampling(FieldReader* reader, v1::SamplingParams* out) {
  if (auto v = reader->Number("temperature")) out->set_temperature(static_cast<float>(*v));
  if (auto v = reader->Number("top_p")) out->set_top_p(static_cast<float>(*v));
  if (auto v = reader->Int("top_k", INT32_MIN, INT32_MAX)) out->set_top_k(static_cast<int>(*v));
  if (auto v = reader->Number("min_p")) out->set_min_p(static_cast<float>(*v));
  if (auto v = reader->Number("presence_penalty"))
    out->set_presence_penalty(static_cast<float>(*v));
  if (auto v = reader->Number("frequency_penalty"))
    out->set_frequency_penalty(static_cast<float>(*v));
  if (auto v = reader->Number("repetition_penalty"))
    out->set_repetition_penalty(static_cast<float>(*v));
  ReadLogitBias(reader, out);
  if (auto v = reader->Uint64("seed")) out->set_seed(*v);
  if (auto v = reader->Int("n", INT32_MIN, INT32_MAX)) out->set_n(static_cast<int>(*v));
  if (auto v = reader->Int("best_of", INT32_MIN, INT32_MAX)) out->set_best_of(static_cast<int>(*v));
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

void ReadStopping(FieldReader* reader, CompletionRequest* request) {
  v1::StopParams* out = request->params.mutable_stopping();
  const int64_t max_tokens = reader->Int("max_tokens", INT32_MIN, INT32_MAX).value_or(16);
  request->prompt_only = max_tokens == 0 && request->echo;
  out->set_max_tokens(request->prompt_only ? 1 : static_cast<int>(max_tokens));
  if (auto v = reader->Int("min_tokens", INT32_MIN, INT32_MAX))
    out->set_min_tokens(static_cast<int>(*v));
  if (auto v = reader->Bool("ignore_eos")) out->set_ignore_eos(*v);
  if (auto v = reader->Bool("include_stop_str_in_output")) out->set_include_stop_str_in_output(*v);
  if (auto v = reader->Ints("stop_token_ids", kMaxStopTokenIds, INT32_MIN, INT32_MAX))
    out->mutable_stop_token_ids()->Add(v->begin(), v->end());
  ReadStopStrings(reader, out);
}

void ReadOutput(FieldReader* reader, CompletionRequest* request) {
  v1::OutputOptions* out = request->params.mutable_output();
  if (auto v = reader->Int("logprobs", INT32_MIN, INT32_MAX)) request->logprobs = *v;
  if (auto v = reader->Int("prompt_logprobs", INT32_MIN, INT32_MAX)) request->prompt_logprobs = *v;
  // Checked apart, so that an error names the field that the client set.
  if (request->logprobs.has_value()) out->set_logprobs(*request->logprobs);
  if (request->prompt_logprobs.has_value()) out->set_prompt_logprobs(*request->prompt_logprobs);
  out->set_skip_special_tokens(reader->Bool("skip_special_tokens").value_or(true));
  out->set_return_token_ids(true);
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
    *error = inner.error();
  }
  if (request->stream && request->prompt_logprobs.has_value())
    reader->Fail("prompt_logprobs", "is not available with 'stream': true");
}

// string | [string] | [int] | [[int]]; texts are tokenised later.
struct RawPrompts {
  std::vector<CompletionPrompt> prompts;
  bool are_texts = false;
};

constexpr const char* kPromptForms =
    "must be a string, an array of strings, an array of token ids, or an array of arrays of token "
    "ids";

std::optional<std::vector<int32_t>> IdsOf(const json::array& array) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& entry : array) {
    const std::optional<int64_t> id = AsInt(entry, INT32_MIN, INT32_MAX);
    if (!id.has_value()) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

bool AddPrompt(const json::value& entry, RawPrompts* out) {
  if (out->are_texts) {
    if (!entry.is_string()) return false;
    out->prompts.push_back({std::string(entry.get_string()), {}});
    return true;
  }
  std::optional<std::vector<int32_t>> ids;
  if (entry.is_array()) ids = IdsOf(entry.get_array());
  if (!ids.has_value()) return false;
  out->prompts.push_back({"", std::move(*ids)});
  return true;
}

RawPrompts ReadPrompts(FieldReader* reader) {
  RawPrompts out;
  const json::value* value = reader->Find("prompt");
  if (value == nullptr) {
    reader->Fail("prompt", "is missing");
    return out;
  }
  const json::array* array = value->if_array();
  const bool single = array == nullptr || (!array->empty() && array->front().is_number());
  if (array != nullptr && array->empty()) {
    reader->Fail("prompt", "is empty");
    return out;
  }
  if (!single && array->size() > kMaxPromptsPerRequest) {
    reader->Fail("prompt", StrCat("may have at most ", kMaxPromptsPerRequest, " prompts, not ",
                                  array->size()));
    return out;
  }
  out.are_texts = array == nullptr || array->front().is_string();
  bool ok = true;
  if (single) {
    ok = AddPrompt(*value, &out);
  } else {
    for (const json::value& entry : *array) ok = ok && AddPrompt(entry, &out);
  }
  if (!ok) reader->Fail("prompt", kPromptForms);
  return out;
}

MaybeError FillPrompt(bool is_text, bool add_special, CompletionRequest* request,
                      CompletionPrompt* prompt) {
  const ModelHandle& model = *request->model;
  if (is_text) {
    StatusOr<std::vector<TokenId>> ids =
        model.tokenizer->Encode(prompt->text, {.add_special = add_special});
    if (!ids.ok()) return InvalidField("prompt", std::string(ids.status().message()));
    prompt->ids = std::move(*ids);
  } else {
    if (auto error = CheckTokenIds(prompt->ids, "prompt", model)) return error;
    if (request->echo) prompt->text = model.tokenizer->Decode(prompt->ids, false);
  }
  return FitToContext(prompt->ids.size(), model, &request->params);
}

// What the replica is asked for on top of what the client set.
void SetDerived(CompletionRequest* request) {
  v1::OutputOptions* out = request->params.mutable_output();
  if (request->echo && request->logprobs.has_value())
    out->set_prompt_logprobs(std::max(*request->logprobs, request->prompt_logprobs.value_or(0)));
  if (request->prompt_only) {
    request->params.mutable_stopping()->set_min_tokens(0);
    out->clear_logprobs();
  }
}

MaybeError ReadFields(const json::object& body, bool* add_special, RawPrompts* prompts,
                      CompletionRequest* request) {
  FieldReader reader(body);
  MaybeError inner;
  reader.String("user");
  request->echo = reader.Bool("echo").value_or(false);
  *add_special = reader.Bool("add_special_tokens").value_or(true);
  *prompts = ReadPrompts(&reader);
  ReadSampling(&reader, request->params.mutable_sampling());
  ReadStopping(&reader, request);
  ReadOutput(&reader, request);
  ReadStream(&reader, request, &inner);
  if (auto v = reader.Int("priority", INT32_MIN, INT32_MAX))
    request->params.set_priority(static_cast<int>(*v));
  if (reader.error().has_value()) return reader.error();
  return inner;
}

}  // namespace

std::variant<std::shared_ptr<const ModelHandle>, ApiError> FindModel(const ModelTable& models,
                                                                     std::string_view name) {
  if (models.empty()) return Unavailable("No replica is ready yet; try again.", 1000);
  const auto found = models.find(name);
  if (found != models.end()) return found->second;
  if (name.empty() && models.size() == 1) return models.begin()->second;
  ApiError error;
  error.code = absl::StatusCode::kNotFound;
  error.message = name.empty() ? "There are several models; 'model' must name one."
                               : StrCat("The model '", std::string(name.substr(0, 128)),
                                        "' does not exist; /v1/models lists those that do.");
  error.param = "model";
  error.type_code = "model_not_found";
  return error;
}

std::variant<CompletionRequest, ApiError> ParseCompletion(std::string_view body,
                                                          const ModelTable& models) {
  json::value root;
  if (auto error = ParseJson(body, &root)) return *error;
  if (!root.is_object()) return InvalidField("", "The body must be a JSON object.");
  const json::object& object = root.get_object();

  FieldReader reader(object);
  const std::optional<std::string_view> name = reader.String("model");
  if (!reader.error().has_value() && !name.has_value()) reader.Fail("model", "is missing");
  if (reader.error().has_value()) return *reader.error();
  if (name->empty()) return InvalidField("model", "'model' is empty.");
  auto model = FindModel(models, *name);
  if (auto* error = std::get_if<ApiError>(&model)) return *error;

  CompletionRequest request;
  request.model = std::get<std::shared_ptr<const ModelHandle>>(model);
  request.params.set_model(request.model->name);
  bool add_special = true;
  RawPrompts raw;
  if (auto error = ReadFields(object, &add_special, &raw, &request)) return *error;
  if (auto error = CheckNotBuilt(object)) return *error;
  if (auto error = CheckParams(request.params, *request.model)) return *error;
  for (CompletionPrompt& prompt : raw.prompts) {
    if (auto error = FillPrompt(raw.are_texts, add_special, &request, &prompt)) return *error;
  }
  request.prompts = std::move(raw.prompts);
  SetDerived(&request);
  return request;
}

}  // namespace flotilla
