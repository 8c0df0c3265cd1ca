// The output side: joins the tokens that the core generated with the text that the detokenizer
// made of them, and hands Deltas to their sinks (routers' channels, direct calls).
//
// A token leaves only with its text: Delta's tokens are those the text covers. A stop string found
// by the detokenizer truncates the request in the core (Inbox::Truncate) and decides the finish,
// whatever the core had found since. Aborts, deadlines and failures end a stream at once, without
// waiting for text.
//
// OutputAssembler has no thread; OutputSide runs it on one, which owns the detokenizer's sockets
// and also drives the routers' timers. Units: tokens; CLOCK_MONOTONIC ns.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/clock.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"
#include "scheduler_proc/exchange/large_results.h"
#include "scheduler_proc/exchange/output_event.h"
#include "scheduler_proc/output/detok_link.h"

namespace flotilla {

class OutputAssembler {
 public:
  struct Deps {
    const Tokenizer* tokenizer = nullptr;
    const Clock* clock = nullptr;
    DetokLink* detok = nullptr;
    Inbox* inbox = nullptr;
    LargeResults* large_results = nullptr;
    std::function<void(ReqId)> on_finished;  // the request's last delta was appended
  };
  explicit OutputAssembler(Deps deps) : deps_(std::move(deps)) {}

  void OnEvent(OutputEvent&& event);
  void OnText(DetokText&& text);
  // Ends a round: one frame to the detokenizer, one Flush a touched sink.
  void Flush();

  size_t live() const { return live_.size(); }

 private:
  struct PendingToken {
    int32_t id = 0;
    std::optional<v1::TokenLogprobs> logprobs;
  };
  struct Live {
    OpenOutput open;
    uint32_t emitted = 0;               // output tokens sent on, resumed ones included
    std::vector<PendingToken> pending;  // generated, text not there yet
    std::optional<ReqOutput> final;
    std::vector<v1::TokenLogprobs> prompt_logprobs;
    size_t prompt_logprobs_bytes = 0;
    std::string stop_reason;
    std::optional<uint32_t> stopped_at;  // tokens, a stop string ended there
    bool text_done = false;
    // The text offset of each token, independent of how the detokenizer batches.
    std::unique_ptr<IncrementalDetokenizer> offsets;
    int32_t text_chars = 0;
  };

  void OnOpen(OpenOutput&& open);
  void OnOutput(ReqOutput&& output);
  void OnToken(Live* live, const ReqOutput& output);
  void Fail(ReqId id, const Status& status, uint32_t computed_tokens = 0);
  void EmitTokens(Live* live, uint32_t count, v1::Delta* delta);
  void Finish(ReqId id, Live* live, v1::Delta* delta);
  void FinishEmbedding(const ReqOutput& output, Live* live);
  void AddUsage(const Live& live, const ReqOutput& final, v1::Delta* delta) const;
  void EndNow(const ReqOutput& final, Live* live);
  bool KeepPromptLogprobs(const ReqOutput& output, Live* live);
  void RefusePromptLogprobs(ReqId id, Live* live);
  bool AddPromptLogprobs(Live* live, v1::Delta* delta);
  void Append(ReqId id, Live* live, v1::Delta&& delta);
  v1::TokenLogprobs ToProto(const PositionLogprobs& logprobs) const;

  const Deps deps_;
  std::unordered_map<ReqId, Live> live_;
  size_t prompt_logprobs_bytes_ = 0;  // of all in live_
  std::vector<std::shared_ptr<OutputSink>> touched_;
};

class OutputSide {
 public:
  struct Deps {
    OutputAssembler::Deps assembler;
    OutputQueue* queue = nullptr;
    // Called after each round and when due: routers' heartbeats and expiry. Returns when it wants
    // to be called next (CLOCK_MONOTONIC ns; INT64_MAX: only after events).
    std::function<int64_t(int64_t now_ns)> tick;
  };
  explicit OutputSide(Deps deps);
  ~OutputSide();  // stops
  void Start();
  void Stop();

  size_t live() const { return live_.load(std::memory_order_relaxed); }

 private:
  void Run();
  void Round();
  void Wait(int64_t next_tick_ns);

  const Deps deps_;
  OutputAssembler assembler_;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> live_{0};
  std::vector<OutputEvent> events_;
  std::vector<DetokText> texts_;
  std::thread thread_;
};

}  // namespace flotilla
