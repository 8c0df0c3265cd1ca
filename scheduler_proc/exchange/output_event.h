// What the loop hands to the output side, and where the output side hands it on.
//
// OutputQueue: one producer (the loop), one consumer (the output thread); waking is by an eventfd,
// so that the consumer can wait on it together with sockets. Bound: a request produces at most its
// max_new_tokens events, so the queue holds at most what the running requests may still generate.
#pragma once

#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "common/base/unique_fd.h"
#include "flotilla/v1/engine.pb.h"
#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/exchange/inbox.h"

namespace flotilla {

// Receives one request's deltas in order. Called by the output thread; for a request whose grammar
// is refused, by the thread that compiled it instead. Implementations synchronise with their own
// gRPC threads.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // The next piece of `stream`; nothing follows one with `last`. False: nobody waits for it.
  virtual bool Append(uint64_t stream, v1::Delta&& piece) = 0;
  // All pieces of this round were appended: send.
  virtual void Flush() = 0;
};

struct OpenOutput {
  ReqId id = 0;
  StreamOptions options;
  std::shared_ptr<OutputSink> sink;
  uint64_t stream = 0;
  uint32_t prompt_tokens = 0;
  std::vector<int32_t> resumed_ids;
  int64_t arrival_ns = 0;
};

// The request ends with an error instead of a finish reason.
struct FailOutput {
  ReqId id = 0;
  Status status;
};

// ReqOutput of kAbort and kDeadline ends the stream at once; the others wait for their text.
using OutputEvent = std::variant<OpenOutput, ReqOutput, FailOutput>;

class OutputQueue {
 public:
  OutputQueue();

  // Moves *events to the queue's end and wakes the consumer. *events is empty afterwards.
  void Push(std::vector<OutputEvent>* events);
  // Wakes the consumer without an event (timers changed, stop).
  void Wake();
  // Takes everything; clears the eventfd.
  void Drain(std::vector<OutputEvent>* out);
  int event_fd() const { return event_fd_.get(); }

 private:
  UniqueFd event_fd_;
  std::mutex mutex_;
  std::vector<OutputEvent> queue_;  // guarded by mutex_
};

}  // namespace flotilla
