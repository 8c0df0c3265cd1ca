// Turns tokens into text, stream by stream: incremental UTF-8, stop strings, held-back text. A pure
// state machine: frames in, frames out.
//
// What a stream has emitted after k tokens depends only on its tokens and options, never on how
// they were grouped into frames; so a stream that is opened again with its history goes on exactly
// where the last answer that was taken ended (DetokStreamEvent::emitted_tokens), and no byte is
// lost or sent twice.
// Held back: the bytes of an unfinished character, and the longest end of the text that may be the
// beginning of a stop string (not with include_stop, where it will be sent in any case).
//
// Bounds: DetokLimits; a stream keeps its stop strings and held-back text, no tokens. Units:
// tokens, bytes. Threads: one at a time. Errors: an event that breaks the contract is dropped and
// counted; if tokens of a stream are missing, the stream is dropped and the outcome asks for a
// resync.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/text/detok_frames.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"
#include "detokenizer_proc/stop_matcher.h"

namespace flotilla {

// Backstops; the scheduler's own limits are lower.
struct DetokLimits {
  size_t max_streams = 2 << 20;
  size_t max_stop_bytes = 64 << 10;  // of all stop strings of a stream
  // Streams that ended here and may still get tokens that the scheduler sent before it heard.
  size_t max_ended = 8192;
};

class DetokenizerCore {
 public:
  explicit DetokenizerCore(const Tokenizer* tokenizer, DetokLimits limits = {})
      : tokenizer_(tokenizer), limits_(limits) {}

  struct Outcome {
    DetokReply reply;         // no texts: nothing to send
    uint64_t num_tokens = 0;  // that were turned into text
    uint64_t rejected_events = 0;
    bool resync = false;  // say hello again: a stream's tokens are missing
    // For logs, the requests whose events were rejected, or which lack tokens and are known.
    std::vector<std::string> troubled_ids;
  };
  // A request of another generation than the last one's begins with no streams.
  Outcome Apply(const DetokRequest& request);

  // No streams, as at the start: another scheduler is there.
  void Reset();

  size_t num_streams() const { return streams_.size(); }

 private:
  struct Stream {
    Stream(const Tokenizer* tokenizer, const DetokStreamEvent& open)
        : detokenizer(tokenizer, open.skip_special),
          matcher(open.stop),
          request_id(open.request_id),
          include_stop(open.include_stop),
          min_tokens(std::max(open.min_tokens, open.emitted_tokens)) {}

    IncrementalDetokenizer detokenizer;
    StopMatcher matcher;
    std::string request_id;
    bool include_stop;
    uint32_t min_tokens;  // no stop string ends it before; what was sent on before had none
    uint32_t num_tokens = 0;
    std::string held;  // certain as text, but perhaps the beginning of a stop string
    int32_t stop_index = -1;
  };

  void Open(const DetokStreamEvent& event, Outcome* outcome);
  void Tokens(const DetokStreamEvent& event, Outcome* outcome);
  void End(uint64_t id);
  void Answer(uint64_t id, Stream* stream, std::string text, bool last, Outcome* outcome);

  // Appends to *out what is certain now; sets stop_index if a stop string ends here.
  static void Feed(Stream* stream, std::string_view text, std::string* out);
  static void Push(Stream* stream, TokenId id, std::string* out);
  static void Flush(Stream* stream, std::string* out);

  const Tokenizer* const tokenizer_;
  const DetokLimits limits_;
  uint64_t generation_ = 0;
  std::unordered_map<uint64_t, Stream> streams_;
  std::unordered_set<uint64_t> ended_;  // of this generation, the latest max_ended
  std::deque<uint64_t> ended_order_;
};

}  // namespace flotilla
