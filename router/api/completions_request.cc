#include "router/api/completions_request.h"

#include <algorithm>
#include <utility>

#include "common/rpc/choices.h"
#include "router/api/generate_check.h"
#include "router/api/request_fields.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

constexpr size_t kDefaultMaxTokens = 16;  // OpenAI's

MaybeError FillPrompt(bool is_text, bool add_special, CompletionRequest* request,
                      CompletionPrompt* prompt) {
  const ModelHandle& model = *request->model;
  if (is_text) {
    if (auto error = CheckPromptBytes(prompt->text, "prompt", model)) return error;
    StatusOr<std::vector<TokenId>> ids =
        model.tokenizer->Encode(prompt->text, {.add_special = add_special});
    if (!ids.ok()) return InvalidField("prompt", std::string(ids.status().message()));
    prompt->ids = std::move(*ids);
  } else {
    if (auto error = CheckTokenIds(prompt->ids, "prompt", model)) return error;
    if (request->echo) prompt->text = model.tokenizer->Decode(prompt->ids, false);
  }
  v1::GenerateRequest fitted;
  *fitted.mutable_stopping() = request->params.stopping();
  SetDefaultMaxTokens(*request, prompt->ids.size(), &fitted);
  return FitToContext(prompt->ids.size(), model, &fitted);
}

MaybeError CheckNumChoices(size_t num_prompts, const v1::GenerateRequest& params) {
  const size_t each = ChoicesOf(params).num_candidates;
  if (num_prompts * each <= kMaxChoicesPerRequest) return std::nullopt;
  const std::string field = params.sampling().has_best_of() ? "best_of" : "n";
  return InvalidField(
      field, StrCat("'", field, "' ", each, " for each of ", num_prompts, " prompts is more than ",
                    kMaxChoicesPerRequest, " choices in a request."));
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

void ReadCompletionMaxTokens(FieldReader* reader, CompletionRequest* request) {
  const auto asked = reader->Int("max_tokens", INT32_MIN, INT32_MAX);
  const int64_t max_tokens = asked.value_or(kDefaultMaxTokens);
  request->default_max_tokens = !asked.has_value();
  request->prompt_only = max_tokens == 0 && request->echo;
  request->params.mutable_stopping()->set_max_tokens(
      request->prompt_only ? 1 : static_cast<int>(max_tokens));
}

MaybeError ReadFields(const json::object& body, bool* add_special, PromptField* prompts,
                      CompletionRequest* request) {
  FieldReader reader(body);
  request->echo = reader.Bool("echo").value_or(false);
  *add_special = reader.Bool("add_special_tokens").value_or(true);
  *prompts = ReadPromptField("prompt", kMaxPromptsPerRequest, &reader);
  ReadCompletionMaxTokens(&reader, request);
  const json::value* logprobs = reader.Find("logprobs");
  if (logprobs != nullptr && logprobs->is_bool())
    reader.Fail("logprobs", "must be how many, an integer from 0 to 20: a boolean is chat's");
  if (auto v = reader.Int("logprobs", INT32_MIN, INT32_MAX)) {
    request->logprobs = *v;
    request->params.mutable_output()->set_logprobs(*v);
  }
  return ReadCommonFields(body, &reader, request);
}

}  // namespace

std::string NamesOf(const ModelTable& models) {
  constexpr size_t kMostNames = 8;
  std::string names;
  size_t left = kMostNames;
  for (const auto& [name, model] : models) {
    if (left-- == 0) return names + ", …";
    StrAppend(&names, names.empty() ? "'" : ", '", name, "'");
  }
  return names;
}

std::variant<std::shared_ptr<const ModelHandle>, ApiError> FindModel(const ModelTable& models,
                                                                     std::string_view name) {
  if (models.empty()) return Unavailable("No replica is ready yet; try again.", 1000);
  const auto found = models.find(name);
  if (found != models.end()) return found->second;
  if (name.empty() && models.size() == 1) return models.begin()->second;
  ApiError error;
  error.code = absl::StatusCode::kNotFound;
  error.message = name.empty() ? "There are several models; 'model' must name one of "
                               : StrCat("The model '", std::string(name.substr(0, 128)),
                                        "' does not exist; there is ");
  StrAppend(&error.message, NamesOf(models), ".");
  error.param = "model";
  error.type_code = "model_not_found";
  return error;
}

void SetDefaultMaxTokens(const CompletionRequest& request, size_t prompt_tokens,
                         v1::GenerateRequest* params) {
  const size_t context = request.model->max_model_len;
  if (!request.default_max_tokens || prompt_tokens >= context) return;
  params->mutable_stopping()->set_max_tokens(
      static_cast<int>(std::min<size_t>(kDefaultMaxTokens, context - prompt_tokens)));
}

std::variant<CompletionRequest, ApiError> ParseCompletion(std::string_view body,
                                                          const ModelTable& models) {
  json::value root;
  CompletionRequest request;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  bool add_special = true;
  PromptField raw;
  if (auto error = ReadFields(root.get_object(), &add_special, &raw, &request)) return *error;
  if (auto error = CheckParams(request.params, *request.model)) return *error;
  if (auto error = CheckStructured(request.params, *request.model, request.structured_field))
    return *error;
  if (auto error = CheckNumChoices(raw.prompts.size(), request.params)) return *error;
  for (CompletionPrompt& prompt : raw.prompts) {
    if (auto error = FillPrompt(raw.are_texts, add_special, &request, &prompt)) return *error;
  }
  request.prompts = std::move(raw.prompts);
  SetDerived(&request);
  return request;
}

}  // namespace flotilla
