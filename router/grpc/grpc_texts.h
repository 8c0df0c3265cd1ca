// gRPC's calls about texts: Tokenize, Detokenize and ApplyTemplate, as /tokenize and its kin.
//
// They run on the pool of large texts, one after the other and behind all that generates, so that
// no client's texts keep gRPC's threads from everybody's calls.
// Units: bytes of requests. Threads: any. Errors: UNAVAILABLE for a call beyond max_bytes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "flotilla/v1/inference.pb.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

class GrpcTexts {
 public:
  // max_bytes: of requests that wait or are worked on. The context's pool outlives the calls.
  GrpcTexts(const HandlerContext& context, uint64_t max_bytes)
      : context_(context), max_bytes_(max_bytes) {}

  // Ends the call with what `work` says; it is left out if the client has gone by then. gRPC keeps
  // request and response until the call's end.
  grpc::ServerUnaryReactor* Run(std::string route, grpc::CallbackServerContext* server_context,
                                uint64_t bytes, std::function<grpc::Status()> work);

 private:
  const HandlerContext context_;
  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
};

// Of a model that was found by the request's name of it.
using FoundModel = std::shared_ptr<const ModelHandle>;
grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice& parsers,
                            const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice& parsers,
                            const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response);
grpc::Status AnswerTextCall(const FoundModel& model, const ParserChoice& parsers,
                            const v1::ChatRequest& request, v1::ApplyTemplateResponse* response);

}  // namespace flotilla
