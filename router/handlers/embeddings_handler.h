// One POST /v1/embeddings: parse, submit each input, answer once all are embedded. Each is a
// request to a replica; the later ones wait for the earlier ones.
//
// A body over 64 KiB is parsed and tokenised on the pool for large texts.
// Threads: the io thread (parsing may run on the pool, on its own copy). Ownership: kept alive by
// its sinks and by the exchange's disconnect callback.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/api/embeddings_request.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

class EmbeddingsHandler : public std::enable_shared_from_this<EmbeddingsHandler> {
 public:
  EmbeddingsHandler(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange);
  ~EmbeddingsHandler();

  void Start(HttpRequest request);

 private:
  class Sink;
  using Parsed = std::variant<EmbeddingsRequest, ApiError>;

  void OnParsed(Parsed parsed);
  void SubmitNext();  // if there is one
  void OnDelta(size_t input, v1::Delta&& delta);
  void OnError(const ApiError& error);
  void OnDisconnect();
  void CancelAll();

  const HandlerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::string traceparent_;
  int64_t end_ns_ = 0;  // of RealClock: when all must be embedded
  EmbeddingsRequest request_;
  EmbeddingsAnswer answer_;
  const std::shared_ptr<AnswerRoom> room_;
  uint64_t kept_bytes_ = 0;        // that it is for
  std::vector<uint64_t> handles_;  // of the inputs that were submitted, the first ones
  size_t finished_ = 0;
  bool ended_ = false;
};

}  // namespace flotilla
