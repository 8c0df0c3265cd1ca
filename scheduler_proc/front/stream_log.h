// Everything that was produced for one stream, and how much of it was sent.
//
// Pieces are appended; Take() builds the next Delta from the cursor on, so unsent pieces merge by
// themselves and a re-attached router gets whatever lies past its token offset by moving the
// cursor. Of a piece with several tokens only the last one's text is known, so such a piece is not
// divided. prompt_logprobs travel with the first token (or the end). Log probabilities are kept as
// they are on the wire, a sixth of what they take as messages; of those of tokens that were sent,
// the last kSentLogprobBytes are: whoever lacks older ones has the tokens computed again.
//
// Units: tokens (those of Submit.resume count), bytes. Threads: the owner's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flotilla/v1/engine.pb.h"

namespace flotilla {

class StreamLog {
 public:
  // `first_token`: how many tokens the consumer has already (resume).
  StreamLog(uint64_t stream_id, uint32_t first_token)
      : stream_id_(stream_id), first_token_(first_token) {}

  static constexpr size_t kSentLogprobBytes = 256 << 10;

  // Returns how many bytes are unsent because of it.
  size_t Append(v1::Delta&& piece);
  bool HasUnsent() const;
  // The next Delta, of about max_bytes at most (at least one piece). Call only if HasUnsent().
  void Take(size_t max_bytes, v1::Delta* delta);
  // What lies past `token_offset` tokens and `prompt_logprobs` entries is unsent again. False: no
  // such offset, or not all of it is kept.
  bool Rewind(uint32_t token_offset, uint32_t prompt_logprobs);
  // The same for who has so many tokens and so many bytes of text, however those were cut; and
  // whether it would be true.
  bool RewindTo(uint32_t token_offset, uint64_t text_bytes);
  bool Has(uint32_t token_offset, uint64_t text_bytes) const;

  uint32_t first_token() const { return first_token_; }
  bool complete() const { return complete_; }  // `last` was appended
  bool last_sent() const { return last_sent_; }
  size_t unsent_bytes() const { return unsent_bytes_; }
  size_t kept_bytes() const;  // memory, of all of it

 private:
  struct Token {
    int32_t id = 0;
    uint32_t text_end = 0;  // bytes of text_ that are certain with this token
    bool ends_piece = true;
  };
  using Logprobs = std::vector<std::string>;  // each a v1::TokenLogprobs
  void ForgetSentLogprobs();
  void Keep(const v1::TokenLogprobs& entry, Logprobs* entries);
  void TakeTokens(size_t max_bytes, v1::Delta* delta);
  bool HasTokens(uint32_t token_offset) const;  // and what follows
  size_t TokenBytes(size_t index) const;
  size_t CountTail() const;
  size_t CountUnsent() const;

  const uint64_t stream_id_;
  const uint32_t first_token_;
  std::vector<Token> tokens_;
  Logprobs logprobs_;  // empty, or one a token, of which the first num_forgotten_ are gone
  size_t num_forgotten_ = 0;
  size_t sent_logprob_bytes_ = 0;  // of those that are kept
  Logprobs prompt_logprobs_;
  size_t logprob_bytes_ = 0;      // of both
  uint64_t large_result_id_ = 0;  // instead of prompt_logprobs_
  std::string text_;
  v1::Delta tail_;  // held_back, usage, timing, error, finish_reason, embedding
  bool complete_ = false;
  // cursor
  size_t sent_tokens_ = 0;
  size_t sent_text_ = 0;
  size_t sent_prompt_ = 0;  // entries of prompt_logprobs_
  bool large_result_sent_ = false;
  bool last_sent_ = false;
  size_t unsent_bytes_ = 0;
};

}  // namespace flotilla
