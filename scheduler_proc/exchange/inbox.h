// What enters the scheduler's loop: submits, aborts, truncations, drain. Many producers (gRPC's
// threads, the output side), one consumer (the loop).
//
// Bound: at most `capacity` waiting submits; a submit beyond is refused. Aborts and truncations are
// always taken: their producers send few for each live request, so they are bounded too.
// Order: as pushed, so an abort pushed after its submit is seen after it.
// Threads: any. Ownership: the inbox owns queued commands.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

class OutputSink;

// What the output side needs to know of a request; the core does not.
struct StreamOptions {
  std::string request_id;  // for logs
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // as in ReqSpec: named in stop_reason
  bool include_stop = false;
  uint32_t min_tokens = 0;  // a stop string within them is just text
  bool skip_special = true;
  bool want_logprobs = false;
  bool return_timing = false;
  bool embeds = false;     // no tokens and no text, but an embedding
  bool normalize = false;  // it
};

struct SubmitCommand {
  ReqSpec spec;
  StreamOptions options;
  std::shared_ptr<OutputSink> sink;
  uint64_t stream = 0;  // the sink's number of this request
};
struct AbortCommand {
  ReqId id = 0;
  Finish reason = Finish::kAbort;  // kAbort or kDeadline
};
struct TruncateCommand {
  ReqId id = 0;
  uint32_t num_tokens = 0;
};
using Command = std::variant<SubmitCommand, AbortCommand, TruncateCommand>;

class Inbox {
 public:
  // `wake` is called after each push, without the lock: it rings the loop's doorbell.
  Inbox(size_t capacity, std::function<void()> wake)
      : capacity_(capacity), wake_(std::move(wake)) {}

  // ResourceExhausted: full; the command was not taken.
  Status Submit(SubmitCommand command);
  void Abort(ReqId id, Finish reason);
  void Truncate(ReqId id, uint32_t num_tokens);

  // Everything that waits, in order, appended to *out.
  void Drain(std::vector<Command>* out);

 private:
  void Push(Command command);

  const size_t capacity_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<Command> queue_;  // guarded by mutex_
  size_t submits_ = 0;          // guarded by mutex_
};

}  // namespace flotilla
