// One Inference.Generate call on the engine itself: the sink of its request, or of the requests of
// its choices (common/rpc/choices.h), and the gRPC reactor that writes what is unsent, one message
// at a time.
//
// The two have separate lives: the reactor ends with the call, the sink with the requests. A call
// that is cancelled, whose reader leaves more than max_unsent_bytes, or one of whose several
// choices fails, aborts its requests. With best_of nothing is told before all have ended, so what
// is then unsent is not the reader's fault and not counted.
// Threads: gRPC's, the output thread; the sink's lock guards all.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/rpc/choices.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "scheduler_proc/front/engine_service.h"
#include "scheduler_proc/front/stream_log.h"

namespace flotilla {

class GenerateReactor;

class DirectCall final : public OutputSink {
 public:
  struct Options {
    std::string request_id;
    std::string model;
    std::vector<int32_t> prompt_ids;
    ChoiceOptions choices;
    bool echo = false;
    bool skip_special = true;
    bool want_logprobs = false;
    bool want_prompt_logprobs = false;  // the client's own wish, not echo's
    bool return_token_ids = true;
  };
  DirectCall(const ServiceDeps* deps, Options options, GenerateReactor* reactor);

  // Submits a request for each candidate, whose `stream` is its number. If one is refused, so is
  // the call. Once, before anything else.
  void Submit(const std::shared_ptr<DirectCall>& self, const CheckedRequest& checked);

  bool Append(uint64_t stream, v1::Delta&& piece) override;
  void Flush() override;

  void OnWritten(bool ok);
  // The client is gone: nothing is written any more, the requests are aborted.
  void Cancel();

 private:
  // What is told of one choice.
  struct Choice {
    StreamLog log{0, 0};
    bool begun = false;
  };
  void PumpLocked();
  bool NextLocked(v1::GenerateResponse* response);
  Choice* NextUnsentLocked();
  void FillLocked(Choice* choice, v1::Delta&& delta, v1::GenerateResponse* response);
  void AddEchoLocked(v1::ChoiceDelta* choice) const;
  void TakePromptLogprobsLocked(v1::Delta* delta);
  size_t UnsentBytesLocked() const;
  bool AllSentLocked() const;
  void FinishLocked(const grpc::Status& status);
  void AbandonLocked(const grpc::Status& status);

  const ServiceDeps* const deps_;
  const Options options_;
  const int64_t created_;
  std::mutex mutex_;
  // All below guarded by mutex_.
  GenerateReactor* reactor_;  // null once Finish was called
  std::vector<ReqId> ids_;    // by candidate
  ChoiceMerger merger_;
  std::vector<Choice> choices_;
  size_t next_choice_ = 0;  // whose turn it is
  bool writing_ = false;
  bool first_ = true;
  int32_t echo_chars_ = 0;                          // code points of the echoed prompt
  std::vector<v1::TokenLogprobs> prompt_logprobs_;  // to be sent
  size_t prompt_sent_ = 0;
  std::vector<v1::TokenLogprobs> echo_logprobs_;  // the same, for the choices' echoes
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
