#include "scheduler_proc/front/inference_service.h"

#include "common/rpc/call_request_id.h"
#include "common/rpc/render_chat.h"
#include "scheduler_proc/exchange/errors.h"
#include "scheduler_proc/front/direct_call.h"
#include "scheduler_proc/front/embed_call.h"

namespace flotilla {
namespace {

class RefusedStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

Status Tokenize(const RequestFront& front, const v1::TokenizeRequest& request,
                v1::TokenizeResponse* response) {
  RETURN_IF_ERROR(front.Ready());
  RETURN_IF_ERROR(CheckModel(request.model(), front.limits().model_name));
  RETURN_IF_ERROR(CheckPromptBytes("text", request.text(), front.limits()));
  Tokenizer::EncodeOptions options;
  if (request.has_add_special_tokens()) options.add_special = request.add_special_tokens();
  StatusOr<std::vector<TokenId>> ids = front.tokenizer().Encode(request.text(), options);
  if (!ids.ok()) return Annotate(ids.status(), "text");
  response->mutable_token_ids()->Add(ids->begin(), ids->end());
  response->set_max_model_len(static_cast<int32_t>(front.limits().context_length));
  return OkStatus();
}

// The rendered conversation and its token ids.
StatusOr<v1::ApplyTemplateResponse> Render(const RequestFront& front, const v1::ChatRequest& chat) {
  RETURN_IF_ERROR(front.Ready());
  RETURN_IF_ERROR(CheckModel(chat.base().model(), front.limits().model_name));
  if (chat.base().prompt_case() != v1::GenerateRequest::PROMPT_NOT_SET)
    return absl::InvalidArgumentError(
        "base.prompt: must be empty, since the messages are the prompt");
  if (const char* field = AsksAsHttp(chat))
    return absl::UnimplementedError(StrCat(field, ": only a router does this; leave it out"));
  if (front.chat_format() == nullptr)
    return absl::InvalidArgumentError("model: has no chat template that works; use Generate");
  ASSIGN_OR_RETURN(std::string text, RenderChat(chat, *front.chat_format(), LocalTime()));
  RETURN_IF_ERROR(CheckPromptBytes("messages", text, front.limits()));
  StatusOr<std::vector<TokenId>> ids =
      front.tokenizer().Encode(text, {.parse_special = true, .add_special = false});
  if (!ids.ok()) return Annotate(ids.status(), "messages");
  v1::ApplyTemplateResponse rendered;
  rendered.set_text(std::move(text));
  rendered.mutable_token_ids()->Add(ids->begin(), ids->end());
  return rendered;
}

// With the rendered conversation's token ids for its prompt.
StatusOr<v1::GenerateRequest> FromChat(const RequestFront& front, const v1::ChatRequest& chat) {
  ASSIGN_OR_RETURN(v1::ApplyTemplateResponse rendered, Render(front, chat));
  v1::GenerateRequest request = chat.base();
  request.mutable_token_ids()->mutable_ids()->Swap(rendered.mutable_token_ids());
  return request;
}

Status Detokenize(const RequestFront& front, const v1::DetokenizeRequest& request,
                  v1::DetokenizeResponse* response) {
  RETURN_IF_ERROR(front.Ready());
  RETURN_IF_ERROR(CheckModel(request.model(), front.limits().model_name));
  RETURN_IF_ERROR(CheckTokenIds(request.token_ids(), "token_ids", front.limits().vocab_size));
  const std::vector<TokenId> ids(request.token_ids().begin(), request.token_ids().end());
  response->set_text(front.tokenizer().Decode(ids, request.skip_special_tokens()));
  return OkStatus();
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  v1::GenerateRequest with_id = *request;
  with_id.set_request_id(TakeRequestId(context, request->request_id()));
  return new GenerateReactor(&deps_, with_id);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  const std::string request_id = TakeRequestId(context, request->base().request_id());
  StatusOr<v1::GenerateRequest> generate = FromChat(*deps_.front, *request);
  if (!generate.ok()) return new RefusedStream(ToGrpc(generate.status()));
  generate->set_request_id(request_id);
  return new GenerateReactor(&deps_, *generate);
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context,
                                                  const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  v1::EmbedRequest with_id = *request;
  with_id.set_request_id(TakeRequestId(context, request->request_id()));
  return new EmbedReactor(&deps_, with_id, response);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Answer(context, flotilla::Tokenize(*deps_.front, *request, response));
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Answer(context, flotilla::Detokenize(*deps_.front, *request, response));
}

grpc::ServerUnaryReactor* InferenceService::ApplyTemplate(grpc::CallbackServerContext* context,
                                                          const v1::ChatRequest* request,
                                                          v1::ApplyTemplateResponse* response) {
  StatusOr<v1::ApplyTemplateResponse> rendered = Render(*deps_.front, *request);
  if (!rendered.ok()) return Answer(context, rendered.status());
  *response = *std::move(rendered);
  return Answer(context, OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsResponse* response) {
  const v1::GetModelInfoResponse info = deps_.info->Get();
  v1::Model* model = response->add_models();
  model->set_id(info.model());
  model->set_created(info.created());
  model->set_max_model_len(static_cast<int32_t>(info.max_model_len()));
  return Answer(context, OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  response->set_found(!request->request_id().empty() &&
                      deps_.front->AbortByRequestId(request->request_id()));
  return Answer(context, OkStatus());
}

}  // namespace flotilla
