// The frames between scheduler and detokenizer (ZeroMQ, Unix socket, bounded; WireWriter /
// WireReader).
//
// The scheduler binds a PUSH socket for DetokRequest and a PULL socket for DetokReply. A
// detokenizer sends kHello once for each connection (and when it missed tokens of a stream); the
// scheduler then opens every live stream again with its whole history, so the detokenizer has no
// state that matters. Each kOpen with tokens and each kTokens is answered by one DetokText, unless
// the stream is not open; a stream whose text says `last` or has a stop_index is closed on both
// sides without a kClose. Errors: Parse* return
// InvalidArgument for anything malformed; the frame is dropped and counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

namespace flotilla {

inline constexpr uint32_t kDetokVersion = 2;

struct DetokStreamEvent {
  enum class Kind : uint32_t { kOpen = 1, kTokens = 2, kClose = 3 };
  Kind kind = Kind::kTokens;
  uint64_t stream = 0;     // scheduler's number of a choice
  std::string request_id;  // kOpen: for logs
  // kOpen: text of history[0 … emitted_tokens) was already sent on; the rest is to be sent.
  bool skip_special = true;
  uint32_t emitted_tokens = 0;
  std::vector<std::string> stop;  // stop strings; empty ones and invalid UTF-8 never match
  bool include_stop = false;
  uint32_t min_tokens = 0;  // a stop string that ends in one of the first min_tokens is just text
  // kOpen: the history; kTokens: new tokens, first is number `offset` of the stream.
  uint32_t offset = 0;
  std::vector<TokenId> tokens;
  bool last = false;  // nothing follows: flush held-back bytes
};

// One frame a scheduler step.
struct DetokRequest {
  uint64_t generation = 0;  // of the detokenizer's connection; echoed
  std::vector<DetokStreamEvent> events;
};

struct DetokText {
  uint64_t stream = 0;
  uint32_t num_tokens = 0;  // tokens consumed so far, history included
  std::string text;         // newly certain text (UTF-8)
  std::string held_back;    // bytes of an unfinished character or a possible stop string
  int32_t stop_index = -1;  // ≥ 0: stop string number that matched, with the num_tokens it ended in
  bool last = false;
};

struct DetokReply {
  enum class Kind : uint32_t { kHello = 1, kText = 2 };
  Kind kind = Kind::kText;
  uint32_t incarnation = 0;  // kHello
  uint64_t generation = 0;   // kText: of the request answered
  std::vector<DetokText> texts;
};

void BuildDetokRequest(const DetokRequest& request, std::string* frame);
Status ParseDetokRequest(std::string_view frame, DetokRequest* request);
void BuildDetokReply(const DetokReply& reply, std::string* frame);
Status ParseDetokReply(std::string_view frame, DetokReply* reply);

}  // namespace flotilla
