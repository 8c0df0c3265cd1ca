// One request on its way through the router, and the place its answer goes to.
//
// A request with several choices (common/rpc/choices.h) is a group of streams, one a choice, on one
// replica. Kept per stream: prompt ids, parameters, and what the client already has. That is all
// that another replica needs to continue from exactly there.
// Threads: the io thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flotilla/v1/engine.pb.h"
#include "router/admission/tenant_limits.h"
#include "router/base/api_error.h"
#include "router/base/model_handle.h"
#include "router/base/trace_context.h"
#include "router/fleet/stream_progress.h"

namespace flotilla {

class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  // Before the first piece of a candidate: what computes it, by the fingerprint of its replica.
  virtual void OnBegun(const std::string& /*fingerprint*/) {}
  // The next piece of candidate `choice`, in order; nothing of it follows delta.last(). Never
  // carries an error.
  virtual void OnDelta(size_t choice, v1::Delta&& delta) = 0;
  // The request failed; nothing follows, of any choice.
  virtual void OnError(const ApiError& error) = 0;
  // Who asked, and is charged for what is computed.
  virtual const Caller& caller() const {
    static const Caller anybody;
    return anybody;
  }
  // The salt of the prefix cache. Empty: anybody.
  const std::string& tenant() const { return caller().tenant(); }
  // The call's W3C trace context, as sent. Empty: none.
  virtual const std::string& traceparent() const {
    static const std::string none;
    return none;
  }
};

struct RequestStream {
  uint64_t handle = 0;          // of its group, unique in this router
  size_t choice = 0;            // in its group
  uint64_t id = 0;              // on the replica; a retry gets a new one
  v1::GenerateRequest request;  // of this choice alone
  std::optional<v1::EmbedOptions> embed;
  std::optional<v1::Keyed> keyed;  // it has an idempotency key, and goes on when its client leaves
  int64_t arrival_unix_ms = 0;     // at the router
  int64_t arrival_ns = 0;
  int64_t first_token_ns = 0;   // 0: it has none yet
  bool timing_is_ours = false;  // the client did not ask for it
  std::optional<TraceContext> trace;
  std::shared_ptr<const ModelHandle> model;
  std::shared_ptr<GenerateSink> sink;

  StreamProgress progress;
  TokenBill bill;  // for its sink's caller
  // Of the replica that the client has something from: only its equals can go on.
  std::optional<std::string> fingerprint;

  uint32_t replica = 0;        // index of the replica that has it, or had it last
  int64_t submitted_ns = 0;    // to it; 0: its first piece has come
  bool refused = false;        // that was an error
  uint64_t cached_tokens = 0;  // of the prompt, at the replica that was just picked
  // Since the client got a token last: how often it was sent to a replica; how often one lost it or
  // failed it, those that drain and those that refused to begin not counted; when each did so
  // last; and how often it was refused.
  uint32_t attempts = 0;
  uint32_t failures = 0;
  std::map<uint32_t, int64_t> failed_ns;
  uint32_t refusals = 0;
  uint32_t failovers = 0;         // ever, after its first token; planned ones are not counted
  bool parked = false;            // no replica has it
  int64_t parked_ns = 0;          // since when it waits for one; 0: it does not
  int64_t waited_ns = 0;          // before that, since the client got a token last
  int64_t ask_again_ns = 0;       // when those that refused it may be asked again
  int64_t lost_ns = 0;            // when the last replica lost it; 0: it has gone on since
  bool fetching_large = false;    // a large result is on its way; deltas wait
  std::deque<v1::Delta> waiting;  // behind it

  // The client has something of it.
  bool begun() const { return fingerprint.has_value(); }
  // A replica has taken it: it was right once.
  bool accepted() const { return begun() || lost_ns != 0; }
  // The replica has not been found wanting since it is well.
  bool IsNewTo(uint32_t index, int64_t well_ns) const {
    const auto failed = failed_ns.find(index);
    return failed == failed_ns.end() || failed->second < well_ns;
  }
  // Of a keyed one with logprobs nothing is resumed: whoever repeats it wants them from the first
  // token on, and a resume has none.
  std::optional<v1::ResumeChoice> BeginAttempt() {
    const v1::OutputOptions& output = request.output();
    const bool whole = keyed.has_value() && (output.has_logprobs() || output.has_prompt_logprobs());
    return progress.BeginAttempt(/*from_start=*/whole);
  }
  uint64_t prompt_tokens() const { return static_cast<uint64_t>(request.token_ids().ids_size()); }
};

// The choices of one prompt. They run on one replica, so that they share the prompt's pages.
struct RequestGroup {
  std::vector<std::shared_ptr<RequestStream>> streams;  // by choice; null: it has ended
  size_t num_live = 0;
  std::string key;                         // choice 0's (Keyed.key), which stands for all; or none
  std::optional<uint32_t> replica;         // index of the one that was chosen last
  bool detached = false;                   // its client has left, and it goes on
  bool located = true;                     // no search for where it runs already is under way
  std::optional<uint32_t> sent_meanwhile;  // while one was: where another with its key went
  // The replica whose slots are held for it while the admission queue holds it, in a search.
  std::optional<uint32_t> slots_at;
};

}  // namespace flotilla
