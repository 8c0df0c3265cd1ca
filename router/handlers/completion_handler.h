// One POST that is answered with generated text (api_forms.h lists the APIs): parse, submit each
// prompt, answer whole or as a stream. Choice i of prompt p is choice p * n + i of the answer.
//
// A body over 64 KiB is parsed and tokenised on the pool for large texts; each conversation on the
// other one, since a template from a model's file may take its time. The status line is sent with
// the first piece, so that whatever fails before it is a plain HTTP error; a failure after it is an
// event of the stream, which then ends. A stream that nothing was sent on for sse_keepalive_ms gets
// a comment, so that nobody on the way takes it for dead; that too sends the status line. Threads:
// the io thread (parsing may run on the pool, on its own copy). Ownership: kept alive by its sinks
// and by the exchange's disconnect callback.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/choices.h"
#include "router/api/completions_request.h"
#include "router/api/completions_response.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

class CompletionHandler : public std::enable_shared_from_this<CompletionHandler> {
 public:
  CompletionHandler(const HandlerContext& context, const ApiForm& form,
                    std::shared_ptr<HttpExchange> exchange);
  ~CompletionHandler();

  void Start(HttpRequest request);

 private:
  class Sink;
  using Parsed = ApiForm::Parsed;

  void Parse(HttpRequest request);
  void OnParsed(Parsed parsed);
  void SubmitAll();
  std::string Digest() const;
  void OnBegun(const std::string& fingerprint);
  void OnDelta(size_t prompt, size_t candidate, v1::Delta&& delta);
  void OnMerged(size_t prompt, const v1::Delta& delta);
  // More of the answer is kept. False: it may not be, and the request has failed.
  bool Keeps(uint64_t more_bytes);
  void OnError(const ApiError& error);
  void OnDisconnect();
  void Finish();
  // Before the first piece is made: what an API's stream begins with is counted and told first.
  void BeginStream();
  void WriteStream(std::string_view data);
  void ArmKeepAlive();

  const HandlerContext context_;
  const ApiForm& form_;
  const std::shared_ptr<HttpExchange> exchange_;
  int64_t received_ns_ = 0;
  std::string idempotency_key_;  // empty: it has none
  std::string traceparent_;      // the same
  int64_t timeout_ms_ = 0;       // 0: it has none
  CompletionRequest request_;
  CompletionEnvelope envelope_;
  std::unique_ptr<AnswerWriter> writer_;  // null: not parsed yet
  size_t num_choices_ = 1;                // of each prompt
  std::vector<uint64_t> handles_;
  std::vector<ChoiceMerger> mergers_;  // by prompt
  // By index in the answer.
  std::vector<ChoiceFormatter> formatters_;
  std::vector<ChoicePiece> choices_;
  const std::shared_ptr<AnswerRoom> room_;
  uint64_t kept_bytes_ = 0;  // that it is for
  size_t finished_prompts_ = 0;
  std::optional<v1::Timing> timing_;  // if asked for
  boost::asio::steady_timer keep_alive_;
  bool written_ = false;  // since it was armed
  bool stream_started_ = false;
  bool ttft_seen_ = false;
  bool ended_ = false;
};

}  // namespace flotilla
