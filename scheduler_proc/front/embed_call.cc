#include "scheduler_proc/front/embed_call.h"

#include <utility>

#include "scheduler_proc/exchange/errors.h"

namespace flotilla {
namespace {

// What a router sends for it.
v1::GenerateRequest ToGenerate(const v1::EmbedRequest& request) {
  v1::GenerateRequest out;
  out.set_request_id(request.request_id());
  out.set_model(request.model());
  if (request.input_case() == v1::EmbedRequest::kText) out.set_text(request.text());
  if (request.input_case() == v1::EmbedRequest::kTokenIds)
    *out.mutable_token_ids() = request.token_ids();
  if (request.has_priority()) out.set_priority(request.priority());
  if (request.has_deadline_ms()) out.set_deadline_ms(request.deadline_ms());
  return out;
}

grpc::Status StatusOf(const v1::Delta& delta) {
  if (delta.has_error()) return ToGrpc(delta.error());
  switch (delta.choices(0).finish_reason()) {
    case v1::FINISH_REASON_ABORT:
      return {grpc::StatusCode::CANCELLED, "the request was aborted"};
    case v1::FINISH_REASON_DEADLINE:
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "the request's deadline is over"};
    default:
      return grpc::Status::OK;
  }
}

}  // namespace

bool EmbedCall::Append(uint64_t, v1::Delta&& piece) {
  std::lock_guard lock(mutex_);
  if (reactor_ == nullptr) return false;
  if (!piece.last()) return true;
  const grpc::Status status = StatusOf(piece);
  if (status.ok()) {
    response_->mutable_embedding()->Swap(piece.mutable_embedding());
    *response_->mutable_usage() = piece.usage();
  }
  FinishLocked(status);
  return true;
}

void EmbedCall::Cancel() {
  std::lock_guard lock(mutex_);
  if (reactor_ == nullptr) return;
  deps_->front->Abort(id_, Finish::kAbort);
  FinishLocked(grpc::Status::CANCELLED);
}

void EmbedCall::Refuse(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  FinishLocked(status);
}

void EmbedCall::FinishLocked(const grpc::Status& status) {
  if (reactor_ == nullptr) return;
  std::exchange(reactor_, nullptr)->Finish(status);
}

EmbedReactor::EmbedReactor(const ServiceDeps* deps, const v1::EmbedRequest& request,
                           v1::EmbedResponse* response) {
  v1::EmbedOptions options;
  options.set_pooling(request.pooling());
  options.set_normalize(!request.has_normalize() || request.normalize());
  StatusOr<CheckedRequest> checked =
      deps->front->CheckEmbed(ToGenerate(request), options, /*text_allowed=*/true);
  if (!checked.ok()) {
    Finish(ToGrpc(checked.status()));
    return;
  }
  response->set_request_id(checked->request_id);
  response->set_model(deps->front->limits().model_name);
  const ReqId id = deps->front->NewId();
  call_ = std::make_shared<EmbedCall>(deps, id, this, response);
  const Status status = deps->front->Enqueue(id, *std::move(checked), /*tenant=*/"",
                                             /*elapsed_ms=*/0, call_, /*stream=*/0);
  if (!status.ok()) call_->Refuse(ToGrpc(status));
}

void EmbedReactor::OnCancel() {
  if (call_ != nullptr) call_->Cancel();
}

}  // namespace flotilla
