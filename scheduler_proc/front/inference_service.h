// flotilla.v1.Inference on the engine itself, for its own model. Callback API. Threads: gRPC's.
// Ownership: owns nothing; the deps outlive the server.
#pragma once

#include "flotilla/v1/inference.grpc.pb.h"
#include "scheduler_proc/front/engine_service.h"

namespace flotilla {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(const ServiceDeps& deps) : deps_(deps) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Chat(grpc::CallbackServerContext* context,
                                                       const v1::ChatRequest* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ApplyTemplate(grpc::CallbackServerContext* context,
                                          const v1::ChatRequest* request,
                                          v1::ApplyTemplateResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  const ServiceDeps deps_;
};

}  // namespace flotilla
