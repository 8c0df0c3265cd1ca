#include "router/api/embeddings_request.h"

#include <bit>
#include <utility>

#include "absl/strings/escaping.h"
#include "router/api/generate_check.h"
#include "router/api/request_fields.h"
#include "router/base/json_writer.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

static_assert(std::endian::native == std::endian::little, "base64 has little-endian floats");

void ReadEncoding(FieldReader* reader, EmbeddingsRequest* out) {
  const auto format = reader->String("encoding_format");
  if (!format.has_value() || *format == "float") return;
  if (*format != "base64") reader->Fail("encoding_format", "must be 'float' or 'base64'");
  out->base64 = true;
}

void ReadPooling(FieldReader* reader, v1::EmbedOptions* out) {
  out->set_pooling(v1::EmbedRequest::POOLING_LAST);
  out->set_normalize(reader->Bool("normalize").value_or(true));
  const auto pooling = reader->String("pooling");
  if (!pooling.has_value() || *pooling == "last") return;
  if (*pooling != "mean") reader->Fail("pooling", "must be 'last' or 'mean'");
  out->set_pooling(v1::EmbedRequest::POOLING_MEAN);
}

// OpenAI's newer models can shorten their embeddings; a language model's hidden state can't be.
void ReadDimensions(FieldReader* reader, const ModelHandle& model) {
  const auto dimensions = reader->Int("dimensions", INT32_MIN, INT32_MAX);
  if (!dimensions.has_value() || *dimensions == static_cast<int64_t>(model.hidden_size)) return;
  reader->Fail("dimensions", StrCat("must be the model's hidden size, ", model.hidden_size));
}

MaybeError FillInput(bool is_text, const ModelHandle& model, CompletionPrompt* input) {
  if (is_text) {
    if (auto error = CheckPromptBytes(input->text, "input", model)) return error;
    StatusOr<std::vector<TokenId>> ids = model.tokenizer->Encode(input->text);
    if (!ids.ok()) return InvalidField("input", std::string(ids.status().message()));
    input->ids = std::move(*ids);
  } else if (auto error = CheckTokenIds(input->ids, "input", model)) {
    return error;
  }
  return CheckInputLength(input->ids.size(), model, "input");
}

void AppendFloats(const google::protobuf::RepeatedField<float>& values, bool base64,
                  std::string* out) {
  if (base64) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                 static_cast<size_t>(values.size()) * sizeof(float));
    StrAppend(out, "\"", absl::Base64Escape({bytes.data(), bytes.size()}), "\"");
    return;
  }
  std::string array;
  for (const float value : values) {
    AppendComma(&array);
    AppendJsonFloat(value, &array);
  }
  StrAppend(out, "[", array, "]");
}

}  // namespace

std::optional<ApiError> CheckInputLength(size_t tokens, const ModelHandle& model,
                                         const std::string& field) {
  if (tokens == 0)
    return InvalidField(field, StrCat("'", field, "' is empty: at least one token is needed."));
  if (tokens > model.max_model_len)
    return ContextExceeded(field, model, StrCat("'", field, "' has ", tokens));
  return std::nullopt;
}

std::variant<EmbeddingsRequest, ApiError> ParseEmbeddings(std::string_view body,
                                                          const ModelTable& models) {
  json::value root;
  CompletionRequest opened;
  if (auto error = OpenRequest(body, models, &root, &opened)) return *error;
  EmbeddingsRequest out;
  out.model = std::move(opened.model);
  out.params = std::move(opened.params);
  FieldReader reader(root.get_object());
  PromptField input = ReadPromptField("input", kMaxInputsPerRequest, &reader);
  ReadEncoding(&reader, &out);
  ReadDimensions(&reader, *out.model);
  ReadPooling(&reader, &out.embed);
  reader.String("user");
  if (auto v = reader.Int("priority", -100, 100)) out.params.set_priority(static_cast<int>(*v));
  if (reader.error().has_value()) return *reader.error();
  if (auto error = CheckCommonNotBuilt(root.get_object())) return *error;
  for (CompletionPrompt& each : input.prompts) {
    if (auto error = FillInput(input.are_texts, *out.model, &each)) return *error;
  }
  out.inputs = std::move(input.prompts);
  return out;
}

std::optional<ApiError> EmbeddingFailure(const v1::Delta& last) {
  const v1::FinishReason reason =
      last.choices_size() > 0 ? last.choices(0).finish_reason() : v1::FINISH_REASON_STOP;
  if (reason == v1::FINISH_REASON_STOP && last.embedding_size() > 0) return std::nullopt;
  ApiError error;
  error.code = absl::StatusCode::kInternal;
  error.message = "The replica answered no embedding.";
  if (reason == v1::FINISH_REASON_ABORT) {
    error.code = absl::StatusCode::kCancelled;
    error.message = "The request was aborted.";
  } else if (reason == v1::FINISH_REASON_DEADLINE) {
    error.code = absl::StatusCode::kDeadlineExceeded;
    error.message = "The request's deadline is over.";
  }
  return error;
}

std::string EmbeddingsJson(const EmbeddingsRequest& request, const EmbeddingsAnswer& answer) {
  std::string out = "{\"id\":";
  AppendJsonString(answer.id, &out);
  StrAppend(&out, ",\"object\":\"list\",\"created\":", answer.created, ",\"model\":");
  AppendJsonString(request.model->name, &out);
  out.append(",\"data\":[");
  for (size_t i = 0; i < answer.data.size(); ++i) {
    StrAppend(&out, i > 0 ? "," : "", "{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":");
    AppendFloats(answer.data[i], request.base64, &out);
    out.push_back('}');
  }
  StrAppend(&out, "],\"usage\":{\"prompt_tokens\":", answer.usage.prompt_tokens(),
            ",\"total_tokens\":", answer.usage.prompt_tokens(),
            ",\"prompt_tokens_details\":{\"cached_tokens\":", answer.usage.cached_tokens(), "}}}");
  return out;
}

}  // namespace flotilla
