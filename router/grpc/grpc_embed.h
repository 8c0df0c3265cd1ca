// One Inference.Embed call on the router.
//
// Checks and tokenises on gRPC's thread, submits on the io thread, answers there. Cancelling the
// call aborts the request.
// Threads: OnDelta and OnError on the io thread, the rest on gRPC's; mutex_ guards what both use.
// Ownership: keeps itself alive until OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "flotilla/v1/inference.grpc.pb.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

class GrpcEmbed final : public grpc::ServerUnaryReactor,
                        public GenerateSink,
                        public std::enable_shared_from_this<GrpcEmbed> {
 public:
  // Never null; gRPC's until OnDone, as is `response`.
  static GrpcEmbed* Start(const HandlerContext& context,
                          grpc::CallbackServerContext* server_context,
                          const v1::EmbedRequest& request, v1::EmbedResponse* response);

  void OnDelta(size_t choice, v1::Delta&& delta) override;
  void OnError(const ApiError& error) override;
  const Caller& caller() const override { return context_.caller; }
  const std::string& traceparent() const override { return traceparent_; }

 private:
  GrpcEmbed(const HandlerContext& context, v1::EmbedResponse* response);
  // The request and what is wished, as the dispatcher takes them.
  std::optional<ApiError> Prepare(const v1::EmbedRequest& request, v1::GenerateRequest* out,
                                  v1::EmbedOptions* embed);
  void Submit(v1::GenerateRequest request, const v1::EmbedOptions& embed);
  // False: it was finished before.
  bool End(const grpc::Status& status, v1::Delta* delta);
  void CancelOnIo();

  void OnCancel() override;
  void OnDone() override;

  const HandlerContext context_;
  const int64_t received_ns_;
  std::shared_ptr<GrpcEmbed> self_;
  std::shared_ptr<const ModelHandle> model_;
  std::string request_id_, traceparent_;

  // The io thread's.
  uint64_t handle_ = 0;
  bool gone_ = false;

  std::mutex mutex_;
  v1::EmbedResponse* const response_;
  std::optional<grpc::Status> status_;  // it was finished with
};

}  // namespace flotilla
