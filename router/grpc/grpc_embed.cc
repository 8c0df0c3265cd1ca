#include "router/grpc/grpc_embed.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "common/base/clock.h"
#include "common/rpc/call_request_id.h"
#include "router/api/embeddings_request.h"
#include "router/api/generate_check.h"

namespace flotilla {
namespace {

constexpr const char* kRoute = "flotilla.v1.Inference/Embed";

}  // namespace

GrpcEmbed::GrpcEmbed(const HandlerContext& context, v1::EmbedResponse* response)
    : context_(context), received_ns_(RealClock::Now()), response_(response) {
  context_.metrics->InFlight(1);
  context_.calls->Add();
}

GrpcEmbed* GrpcEmbed::Start(const HandlerContext& context,
                            grpc::CallbackServerContext* server_context,
                            const v1::EmbedRequest& request, v1::EmbedResponse* response) {
  std::shared_ptr<GrpcEmbed> call(new GrpcEmbed(context, response));
  call->self_ = call;
  v1::GenerateRequest generate;
  v1::EmbedOptions embed;
  generate.set_request_id(TakeRequestId(server_context, request.request_id()));
  call->request_id_ = generate.request_id();
  call->traceparent_ = MetadataText(*server_context, "traceparent");
  if (const auto error = call->Prepare(request, &generate, &embed)) {
    call->OnError(*error);
    return call.get();
  }
  boost::asio::post(*context.io, [call, generate = std::move(generate), embed]() mutable {
    call->Submit(std::move(generate), embed);
  });
  return call.get();
}

std::optional<ApiError> GrpcEmbed::Prepare(const v1::EmbedRequest& request,
                                           v1::GenerateRequest* out, v1::EmbedOptions* embed) {
  auto model = FindModel(*context_.dispatcher->models(), request.model());
  if (auto* error = std::get_if<ApiError>(&model)) return *error;
  model_ = std::get<std::shared_ptr<const ModelHandle>>(model);
  out->set_model(model_->name);
  if (request.has_priority()) out->set_priority(request.priority());
  if (request.has_deadline_ms()) out->set_deadline_ms(request.deadline_ms());
  if (auto error = CheckParams(*out, *model_)) return error;
  if (!v1::EmbedRequest::Pooling_IsValid(request.pooling()))
    return InvalidField("pooling", "'pooling' must be POOLING_LAST or POOLING_MEAN.");
  embed->set_pooling(request.pooling());
  embed->set_normalize(!request.has_normalize() || request.normalize());
  if (request.input_case() == v1::EmbedRequest::INPUT_NOT_SET)
    return InvalidField("text", "'text' or 'token_ids' must be given.");
  const bool is_text = request.input_case() == v1::EmbedRequest::kText;
  const std::string field = is_text ? "text" : "token_ids";
  std::vector<int32_t> ids(request.token_ids().ids().begin(), request.token_ids().ids().end());
  if (is_text) {
    if (auto error = CheckPromptBytes(request.text(), field, *model_)) return error;
    StatusOr<std::vector<TokenId>> encoded = model_->tokenizer->Encode(request.text());
    if (!encoded.ok()) return InvalidField(field, std::string(encoded.status().message()));
    ids = std::move(*encoded);
  }
  if (auto error = CheckTokenIds(ids, field, *model_)) return error;
  if (auto error = CheckInputLength(ids.size(), *model_, field)) return error;
  out->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  return std::nullopt;
}

void GrpcEmbed::Submit(v1::GenerateRequest request, const v1::EmbedOptions& embed) {
  if (gone_) return;
  auto submitted =
      context_.dispatcher->SubmitEmbed(std::move(request), embed, model_, shared_from_this());
  if (auto* error = std::get_if<ApiError>(&submitted))
    OnError(*error);
  else
    handle_ = std::get<uint64_t>(submitted);
}

void GrpcEmbed::OnDelta(size_t, v1::Delta&& delta) {
  if (!delta.last()) return;
  if (const auto error = EmbeddingFailure(delta))
    OnError(*error);
  else
    End(grpc::Status::OK, &delta);
}

void GrpcEmbed::OnError(const ApiError& error) {
  LogFailure(request_id_, error);
  End(ToGrpcStatus(error), nullptr);
}

bool GrpcEmbed::End(const grpc::Status& status, v1::Delta* delta) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.has_value()) return false;
  status_ = status;
  if (delta != nullptr) {
    response_->mutable_embedding()->Swap(delta->mutable_embedding());
    *response_->mutable_usage() = delta->usage();
    response_->set_request_id(request_id_);
    response_->set_model(model_->name);
  }
  Finish(status);
  return true;
}

void GrpcEmbed::CancelOnIo() {
  gone_ = true;
  if (handle_ != 0) context_.dispatcher->Cancel(handle_);
}

void GrpcEmbed::OnCancel() {
  if (!End(grpc::Status(grpc::StatusCode::CANCELLED, "The call was cancelled."), nullptr)) return;
  context_.metrics->ClientDisconnect();
  boost::asio::post(*context_.io, [self = shared_from_this()] { self->CancelOnIo(); });
}

void GrpcEmbed::OnDone() {
  context_.metrics->InFlight(-1);
  context_.metrics->Request(kRoute, std::to_string(static_cast<int>(status_->error_code())),
                            static_cast<double>(RealClock::Now() - received_ns_) * 1e-9);
  CallTracker* const calls = context_.calls;
  self_.reset();
  calls->Remove();
}

}  // namespace flotilla
