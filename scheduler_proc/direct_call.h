// One Inference.Generate call on the engine itself: the sink of its request, and the gRPC reactor
// that writes what is unsent, one message at a time.
//
// The two have separate lives: the reactor ends with the call, the sink with the request. A call
// that is cancelled, or whose reader leaves more than max_unsent_bytes, aborts its request.
// Threads: gRPC's, the output thread; the sink's lock guards all.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "flotilla/v1/inference.grpc.pb.h"
#include "scheduler_proc/engine_service.h"
#include "scheduler_proc/stream_log.h"

namespace flotilla {

class GenerateReactor;

class DirectCall final : public OutputSink {
 public:
  struct Options {
    std::string request_id;
    std::string model;
    std::vector<int32_t> prompt_ids;
    bool echo = false;
    bool skip_special = true;
    bool want_logprobs = false;
    bool want_prompt_logprobs = false;  // the client's own wish, not echo's
    bool return_token_ids = true;
  };
  DirectCall(const ServiceDeps* deps, ReqId id, Options options, GenerateReactor* reactor);

  void Append(uint64_t stream, v1::Delta&& piece) override;
  void Flush() override;

  void OnWritten(bool ok);
  // The client is gone: nothing is written any more, the request is aborted.
  void Cancel();
  // The request never ran.
  void Refuse(const grpc::Status& status);

 private:
  void PumpLocked();
  bool NextLocked(v1::GenerateResponse* response);
  void FillLocked(v1::Delta&& delta, v1::GenerateResponse* response);
  void AddEchoLocked(v1::GenerateResponse* response);
  void TakePromptLogprobsLocked(v1::Delta* delta);
  void FinishLocked(const grpc::Status& status);
  void AbandonLocked(const grpc::Status& status);

  const ServiceDeps* const deps_;
  const ReqId id_;
  const Options options_;
  const int64_t created_;
  std::mutex mutex_;
  // All below guarded by mutex_.
  GenerateReactor* reactor_;  // null once Finish was called
  StreamLog log_;
  bool writing_ = false;
  bool first_ = true;
  int32_t echo_chars_ = 0;                          // code points of the echoed prompt
  std::vector<v1::TokenLogprobs> prompt_logprobs_;  // not sent yet
  size_t prompt_sent_ = 0;
};

class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  GenerateReactor(const ServiceDeps* deps, const v1::GenerateRequest& request);
  void OnWriteDone(bool ok) override { call_->OnWritten(ok); }
  void OnCancel() override;
  void OnDone() override { delete this; }

  // By DirectCall, with its lock held.
  void Write(v1::GenerateResponse&& response) {
    out_ = std::move(response);
    StartWrite(&out_);
  }

 private:
  std::shared_ptr<DirectCall> call_;  // null: refused
  v1::GenerateResponse out_;
};

}  // namespace flotilla
