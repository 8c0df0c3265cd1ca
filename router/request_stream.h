// One request on its way through the router, and the place its answer goes to.
//
// A request with several choices (common/rpc/choices.h) is a group of streams, one a choice, on one
// replica. Kept per stream: prompt ids, parameters, and what the client already has. That is all
// that `Submit.resume` needs, so that another replica can continue from exactly there.
// Threads: the io thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "flotilla/v1/engine.pb.h"
#include "router/api_error.h"
#include "router/model_handle.h"

namespace flotilla {

class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  // The next piece of candidate `choice`, in order; nothing of it follows delta.last(). Never
  // carries an error.
  virtual void OnDelta(size_t choice, v1::Delta&& delta) = 0;
  // The request failed; nothing follows, of any choice.
  virtual void OnError(const ApiError& error) = 0;
};

// What the client has of a choice.
struct ChoiceProgress {
  std::vector<int32_t> output_ids;
  uint64_t emitted_bytes = 0;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  double cumulative_logprob = 0;
};

struct RequestStream {
  uint64_t handle = 0;          // of its group, unique in this router
  size_t choice = 0;            // in its group
  uint64_t id = 0;              // on the replica; a retry gets a new one
  v1::GenerateRequest request;  // of this choice alone
  std::optional<v1::EmbedOptions> embed;
  int64_t arrival_unix_ms = 0;
  std::shared_ptr<const ModelHandle> model;
  std::shared_ptr<GenerateSink> sink;

  ChoiceProgress progress;       // received, so delivered or waiting for a large result
  uint32_t prompt_logprobs = 0;  // received
  bool delivered = false;        // the sink has something: no retry any more

  uint32_t replica = 0;  // index of the replica that has it
  uint32_t attempts = 1;
  std::set<uint32_t> tried;       // replicas that failed it
  bool fetching_large = false;    // a large result is on its way; deltas wait
  std::deque<v1::Delta> waiting;  // behind it

  uint64_t prompt_tokens() const { return static_cast<uint64_t>(request.token_ids().ids_size()); }
};

// The choices of one prompt. They run on one replica, so that they share the prompt's pages.
struct RequestGroup {
  std::vector<std::shared_ptr<RequestStream>> streams;  // by choice; null: it has ended
  size_t num_live = 0;
  uint32_t replica = 0;  // index of the one that was chosen last
};

}  // namespace flotilla
