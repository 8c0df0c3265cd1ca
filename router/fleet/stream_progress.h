// What the client has of a choice, and how another replica goes on from exactly there.
//
// A replica that takes over is given the output up to the last piece that brought tokens (the
// resume point), not all of it: what ended the output may have been seen in that piece and never
// told. It computes those tokens again, which by determinism are the same, and Deliver takes off
// what the client has. If they are not the same, the client gets an error instead of a changed
// answer.
//
// Units: tokens, bytes of text. Threads: one at a time. Pure. Errors: Deliver's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

class StreamProgress {
 public:
  // A replica begins to work on it. What to go on from; nothing: from the prompt alone.
  // `from_start`: it computes all again.
  std::optional<v1::ResumeChoice> BeginAttempt(bool from_start = false);

  // A frame brought it, whole or with a large result of `entries` prompt logprobs to be fetched.
  void OnReceived(const v1::Delta& delta);
  void OnLargeResult(size_t entries) { received_prompt_logprobs_ += entries; }
  // What a replica has sent in this attempt, as Reattach counts it.
  uint32_t received_tokens() const { return static_cast<uint32_t>(received_tokens_); }
  uint32_t received_prompt_logprobs() const {
    return static_cast<uint32_t>(received_prompt_logprobs_);
  }

  // Before the client gets it: leaves in *delta what is new. Internal: the replica repeats
  // something else than the client has.
  Status Deliver(v1::Delta* delta);

  size_t num_tokens() const { return output_ids_.size(); }

 private:
  struct Point {
    size_t tokens = 0;
    uint64_t text_bytes = 0;
    double cumulative_logprob = 0;
  };
  Point now() const { return {output_ids_.size(), text_bytes_, cumulative_logprob_}; }
  Status DropRepeated(v1::ChoiceDelta* choice);

  // The client's.
  std::vector<int32_t> output_ids_;
  uint64_t text_bytes_ = 0;
  double cumulative_logprob_ = 0;
  size_t prompt_logprobs_ = 0;
  Point resume_point_;

  // Of this attempt: what came, and what is still to come that the client has.
  size_t received_tokens_ = 0;
  size_t received_prompt_logprobs_ = 0;
  size_t repeated_tokens_ = 0;
  uint64_t repeated_bytes_ = 0;
  size_t repeated_prompt_logprobs_ = 0;
};

// Nothing for a client is in it: it was all repeated.
bool IsEmpty(const v1::Delta& delta);

}  // namespace flotilla
