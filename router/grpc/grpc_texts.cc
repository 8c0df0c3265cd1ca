#include "router/grpc/grpc_texts.h"

#include <boost/asio/post.hpp>
#include <span>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "router/api/generate_check.h"
#include "router/grpc/grpc_chat.h"

namespace flotilla {

grpc::ServerUnaryReactor* GrpcTexts::Run(std::string route,
                                         grpc::CallbackServerContext* server_context,
                                         uint64_t bytes, std::function<grpc::Status()> work) {
  grpc::ServerUnaryReactor* const reactor = server_context->DefaultReactor();
  const int64_t received_ns = RealClock::Now();
  const auto end = [this, reactor, bytes, received_ns,
                    route = std::move(route)](const grpc::Status& status) {
    context_.metrics->Request(route, std::to_string(static_cast<int>(status.error_code())),
                              static_cast<double>(RealClock::Now() - received_ns) * 1e-9);
    bytes_ -= bytes;
    reactor->Finish(status);
  };
  if ((bytes_ += bytes) > max_bytes_) {
    context_.metrics->Rejection("body_memory");
    end(ToGrpcStatus(
        Unavailable("This router has no memory for another text now; try again.", 1000)));
    return reactor;
  }
  context_.metrics->InFlight(1);
  boost::asio::post(*context_.large_pool,
                    [metrics = context_.metrics, server_context, end, work = std::move(work)] {
                      end(server_context->IsCancelled()
                              ? grpc::Status(grpc::StatusCode::CANCELLED, "The call was cancelled.")
                              : work());
                      metrics->InFlight(-1);
                    });
  return reactor;
}

grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice&,
                            const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  if (const auto error = CheckPromptBytes(request.text(), "text", *model))
    return ToGrpcStatus(*error);
  const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
  StatusOr<std::vector<TokenId>> ids =
      model->tokenizer->Encode(request.text(), {.add_special = add_special});
  if (!ids.ok()) return ToGrpcStatus(InvalidField("text", std::string(ids.status().message())));
  response->mutable_token_ids()->Add(ids->begin(), ids->end());
  response->set_max_model_len(static_cast<int32_t>(model->max_model_len));
  return grpc::Status::OK;
}

grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice&,
                            const v1::DetokenizeRequest& request,
                            v1::DetokenizeResponse* response) {
  const std::span<const int32_t> ids(request.token_ids().data(),
                                     static_cast<size_t>(request.token_ids_size()));
  if (ids.size() > model->max_model_len)
    return ToGrpcStatus(InvalidField(
        "token_ids", StrCat("'token_ids' may have at most ", model->max_model_len, " ids.")));
  if (const auto error = CheckTokenIds(ids, "token_ids", *model)) return ToGrpcStatus(*error);
  response->set_text(model->tokenizer->Decode(ids, request.skip_special_tokens()));
  return grpc::Status::OK;
}

grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice& parsers,
                            const v1::ChatRequest& request, v1::ApplyTemplateResponse* response) {
  CompletionRequest read;
  read.model = model;
  read.params = request.base();
  if (const auto error = SetChatPrompt(request, parsers, &read)) return ToGrpcStatus(*error);
  CompletionPrompt& rendered = read.prompts[0];
  response->set_text(std::move(rendered.text));
  response->mutable_token_ids()->Add(rendered.ids.begin(), rendered.ids.end());
  return grpc::Status::OK;
}

}  // namespace flotilla
