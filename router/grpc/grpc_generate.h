// One Inference.Generate or Chat call on the router.
//
// Checks and tokenises on gRPC's thread, submits on the io thread, writes what comes. Unsent
// messages are bounded in bytes: a client that reads too slowly gets RESOURCE_EXHAUSTED (best_of's
// answer is there at once: that it waits for its reader is no sign of a slow one). Cancelling the
// call aborts the request.
// Threads: OnDelta and OnError on the io thread, the rest on gRPC's; mutex_ guards what both use.
// Ownership: keeps itself alive until OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/rpc/choices.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "router/answer/choice_reader.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

// Of a stream to a client.
struct GrpcStreamLimits {
  uint64_t max_buffer_bytes = 1 << 20;  // unsent, before its call is ended
  int64_t write_timeout_ms = 30'000;    // without a message taken by the client
};

class GrpcGenerate final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public GenerateSink,
                           public std::enable_shared_from_this<GrpcGenerate> {
 public:
  // Never null; gRPC's until OnDone.
  static GrpcGenerate* Start(const HandlerContext& context, const GrpcStreamLimits& limits,
                             grpc::CallbackServerContext* server_context,
                             const v1::GenerateRequest& request);
  // Its prompt is the rendered conversation.
  static GrpcGenerate* StartChat(const HandlerContext& context, const GrpcStreamLimits& limits,
                                 grpc::CallbackServerContext* server_context,
                                 const v1::ChatRequest& request);

  void OnDelta(size_t choice, v1::Delta&& delta) override;
  void OnError(const ApiError& error) override;
  const Caller& caller() const override { return context_.caller; }
  const std::string& traceparent() const override { return traceparent_; }

 private:
  GrpcGenerate(const HandlerContext& context, const char* route, const GrpcStreamLimits& limits);
  // `chat`: null unless the prompt comes from a conversation.
  static GrpcGenerate* StartCall(const std::shared_ptr<GrpcGenerate>& call,
                                 grpc::CallbackServerContext* server_context,
                                 v1::GenerateRequest request, const v1::ChatRequest* chat);
  std::optional<ApiError> Prepare(const v1::ChatRequest* chat, v1::GenerateRequest* request);
  std::optional<ApiError> FillPrompt(v1::GenerateRequest* request);
  std::optional<ApiError> FillPromptFromChat(const v1::ChatRequest& chat,
                                             v1::GenerateRequest* request);
  void Submit(const v1::GenerateRequest& request);
  void PushMerged(v1::Delta&& delta, bool last);
  void TellApart(v1::ChoiceDelta* choice);
  void AddPrompt(v1::GenerateResponse* response);
  void Push(v1::GenerateResponse response);
  void CountQueued(uint64_t bytes);
  void WriteFront();
  // Breaks the call off once a message has not been taken for write_timeout_ms; until then it looks
  // again.
  void WatchWrites();
  void LookAtWrite();
  void Fail(const ApiError& error);
  void End(const grpc::Status& status);
  void CancelOnIo();

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const HandlerContext context_;
  const char* const route_;  // of metrics
  const GrpcStreamLimits limits_;
  grpc::CallbackServerContext* server_context_ = nullptr;  // gRPC's, until OnDone
  const int64_t received_ns_;
  std::shared_ptr<GrpcGenerate> self_;

  // Set before submission, constant afterwards.
  std::shared_ptr<const ModelHandle> model_;
  std::string request_id_, traceparent_;
  std::string echo_text_;
  std::vector<int32_t> prompt_ids_;
  int64_t created_ = 0;
  ChoiceOptions choices_;
  std::optional<AnswerSyntax> syntax_;  // none: text is told as it is
  std::string structured_field_;        // that errors about a grammar are about; empty: its own
  bool return_token_ids_ = true;
  bool return_timing_ = false;

  // The io thread's.
  uint64_t handle_ = 0;
  std::optional<ChoiceMerger> merger_;
  AnswerRoom room_;
  std::vector<ChoiceReader> readers_;  // by choice; with syntax_
  std::vector<bool> echoed_;           // by choice
  bool first_ = true;
  bool gone_ = false;
  boost::asio::steady_timer write_timer_;

  std::mutex mutex_;
  std::deque<v1::GenerateResponse> queue_;  // the front is being written
  uint64_t queued_bytes_ = 0;
  int64_t write_began_ns_ = 0;
  std::optional<grpc::Status> status_;  // to finish with once the queue is empty
  bool finished_ = false;
};

}  // namespace flotilla
