// The scheduler's end of the detokenizer: two ZeroMQ sockets, and for every live stream the tokens
// it was given and how many of them have their text passed on.
//
// The detokenizer may die at any time: when another one says hello, every live stream is opened
// again with its history, under a new generation; replies of an older generation are dropped, so
// each text arrives exactly once. A send queue that is full is treated the same way once it
// drains, and so is a stream that was not answered for kDetokAnswerNs (a frame can be lost between
// the end of one detokenizer and the hello of the next); twice as long each time, until all are
// answered, since to begin anew does not help one that is slow. Nothing is sent before the first
// hello. Histories go in frames of some kDetokFrameBytes, so that the detokenizer can say that it
// lives between them.
//
// Bounds: a stream's history is at most the context length; send and receive queues hold
// kDetokQueueFrames frames. Units: tokens. Threads: one, the output thread; it polls
// reply_socket() itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/text/detok_frames.h"
#include "scheduler_proc/exchange/inbox.h"

namespace zmq {
class context_t;
class socket_t;
}  // namespace zmq

namespace flotilla {

inline constexpr int kDetokQueueFrames = 4096;
inline constexpr int64_t kDetokAnswerNs = 5 * kNsPerSecond;
inline constexpr size_t kDetokFrameBytes = 1 << 20;

class DetokLink {
 public:
  // Binds both. Error: an address can't be bound.
  static StatusOr<std::unique_ptr<DetokLink>> Bind(const std::string& request_address,
                                                   const std::string& reply_address);
  ~DetokLink();

  // `history`: output tokens whose text the client already has (resume).
  void Open(uint64_t stream, const StreamOptions& options, const std::vector<int32_t>& history);
  void Push(uint64_t stream, int32_t token);
  void Last(uint64_t stream);   // nothing follows
  void Close(uint64_t stream);  // no text is wanted any more
  // Sends what was collected since the last Flush as one frame.
  void Flush();

  // At least once a second while streams are live: opens all again if one waits too long.
  void Tick(int64_t now_ns);

  // Texts that arrived, appended to *texts; never blocks. Handles hellos.
  void Receive(std::vector<DetokText>* texts);

  void* reply_socket() const;
  bool connected() const { return generation_ != 0; }
  size_t live_streams() const { return streams_.size(); }
  uint64_t restarts() const { return restarts_; }
  uint64_t bad_frames() const { return bad_frames_; }
  // True while frames are held because the send queue is full: call Flush() again soon.
  bool stuck() const { return stuck_; }

 private:
  struct Stream {
    StreamOptions options;
    std::vector<int32_t> tokens;
    uint32_t emitted = 0;  // of tokens: text passed on
    bool last = false;
    // As of the last Tick: since when no more of it was answered; 0: nothing is missing.
    int64_t waiting_since_ns = 0;
    uint32_t waiting_at = 0;  // emitted, then
  };
  DetokLink();
  void Hello(uint32_t incarnation);
  void OpenAll();
  void Send();
  bool Take(const DetokText& text);

  std::unique_ptr<zmq::context_t> context_;
  std::unique_ptr<zmq::socket_t> requests_;
  std::unique_ptr<zmq::socket_t> replies_;
  std::unordered_map<uint64_t, Stream> streams_;
  DetokRequest pending_;
  std::string frame_;
  uint64_t generation_ = 0;
  bool stuck_ = false;
  int64_t patience_ns_ = kDetokAnswerNs;
  uint64_t restarts_ = 0;
  uint64_t bad_frames_ = 0;
};

}  // namespace flotilla
