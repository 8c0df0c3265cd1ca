// The one way into the loop: both gRPC services check, number and submit requests here, and abort
// them. Also knows whether requests are taken at all (loading, serving, draining) and which are
// live.
//
// Threads: any. Errors: Unavailable while loading or draining, those of CheckRequest,
// ResourceExhausted when the inbox is full. After an error nothing was submitted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/base/clock.h"
#include "common/text/chat_format.h"
#include "common/text/tokenizer.h"
#include "scheduler_proc/exchange/inbox.h"
#include "scheduler_proc/exchange/load_board.h"
#include "scheduler_proc/front/validate.h"
#include "scheduler_proc/grammar/grammar_compiler.h"

namespace flotilla {

class RequestFront {
 public:
  struct Deps {
    Inbox* inbox = nullptr;
    LoadBoard* load = nullptr;
    const Tokenizer* tokenizer = nullptr;
    const ChatFormat* chat_format = nullptr;  // null: the model can't chat
    const Clock* clock = nullptr;
    std::function<void(absl::StatusCode)> on_refused;  // for the metric; any thread
    GrammarCompiler* grammars = nullptr;               // null: no structured output
  };
  explicit RequestFront(Deps deps) : deps_(std::move(deps)) {}

  // Requests are taken from now on. Later calls change nothing.
  void SetServing(const RequestLimits& limits);
  // No new ones, for good.
  void SetDraining();
  // Unavailable, with the reason, unless serving.
  Status Ready() const;
  bool served() const { return served_.load(); }           // SetServing was called in time
  const RequestLimits& limits() const { return limits_; }  // only after Ready() was OK
  const Tokenizer& tokenizer() const { return *deps_.tokenizer; }
  const ChatFormat* chat_format() const { return deps_.chat_format; }

  ReqId NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // text_allowed: the prompt may be text (a router sends token ids).
  StatusOr<CheckedRequest> Check(const v1::GenerateRequest& request,
                                 const google::protobuf::RepeatedPtrField<v1::ResumeChoice>& resume,
                                 bool text_allowed) const;
  StatusOr<CheckedRequest> CheckEmbed(const v1::GenerateRequest& request,
                                      const v1::EmbedOptions& embed, bool text_allowed) const;
  // elapsed_ms: of the deadline, spent before the request came here. A request with a grammar is
  // submitted when that is compiled; what fails then is told to the sink.
  Status Enqueue(ReqId id, CheckedRequest&& checked, const std::string& tenant, int64_t elapsed_ms,
                 std::shared_ptr<OutputSink> sink, uint64_t stream);
  // kAbort or kDeadline. The sink gets a last delta if the request was still running.
  void Abort(ReqId id, Finish reason);
  // Every running request with this id of a client. False: none.
  bool AbortByRequestId(const std::string& request_id);

  // By the output side: the request's last delta is out.
  void OnFinished(ReqId id);
  size_t live() const;
  // False: some request was still live at the deadline.
  bool WaitIdle(int64_t deadline_ns);

 private:
  enum class Phase { kLoading, kServing, kDraining };
  // Counts and logs what is refused.
  StatusOr<CheckedRequest> Noted(const std::string& request_id,
                                 StatusOr<CheckedRequest> checked) const;

  // To the loop; and what was aborted on the way.
  Status Enter(SubmitCommand&& command);
  Status Submit(SubmitCommand&& command);
  // What was counted as submitted is not; the log and the metrics are told.
  void Refuse(ReqId id, const std::string& request_id, uint64_t tokens, const Status& status);
  void OnGrammar(SubmitCommand&& command, GrammarCompiler::Result grammar);

  const Deps deps_;
  RequestLimits limits_;  // set before phase_ becomes kServing
  std::atomic<Phase> phase_{Phase::kLoading};
  std::atomic<bool> served_{false};
  std::atomic<ReqId> next_id_{1};
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  // Guarded by mutex_. request_id is a client's: several requests may have the same.
  std::unordered_map<ReqId, std::string> live_;
  std::unordered_multimap<std::string, ReqId> by_request_id_;
  // Those that are not in the inbox yet, most for their grammar; aborted meanwhile: why.
  std::unordered_map<ReqId, Finish> entering_;
};

}  // namespace flotilla
