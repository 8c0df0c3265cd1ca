// The detokenizer's loop: requests from the scheduler's PUSH socket, through DetokenizerCore, to
// its PULL socket; the hello at each connection; the heartbeat; an orderly end.
//
// The loop sleeps in zmq_poll until a frame comes, a connection changes, the stop descriptor is
// readable, or half a second has passed (for the heartbeat). A frame that can't be parsed is
// dropped and counted. A scheduler that takes no replies blocks the loop (the heartbeat goes on),
// so no more requests are read: all queues are bounded by kQueueFrames.
//
// Threads: Create, Run and destruction on one thread. Errors: Create fails if a socket address is
// wrong; Run fails only if ZeroMQ itself does.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/text/tokenizer.h"
#include "detokenizer_proc/detokenizer_core.h"
#include "detokenizer_proc/detokenizer_metrics.h"
#include "shm/replica_control.h"

namespace zmq {
class context_t;
class socket_t;
}  // namespace zmq

namespace flotilla {

struct DetokenizerOptions {
  std::string request_socket;  // "ipc:///path" of the scheduler's PUSH socket
  std::string reply_socket;    // and of its PULL socket
  uint32_t incarnation = 0;    // sent in the hello
  int stop_fd = -1;            // readable: finish what has arrived, then return
};

class DetokenizerServer {
 public:
  static constexpr int kQueueFrames = 1024;
  static constexpr int64_t kMaxFrameBytes = 128 << 20;

  // Everything passed by pointer must outlive the server.
  static StatusOr<std::unique_ptr<DetokenizerServer>> Create(DetokenizerOptions options,
                                                             const Tokenizer* tokenizer,
                                                             const Clock* clock, ProcessSlot* slot,
                                                             DetokenizerMetrics* metrics);
  ~DetokenizerServer();

  // Until stop_fd is readable.
  Status Run();

 private:
  DetokenizerServer(DetokenizerOptions options, const Tokenizer* tokenizer, const Clock* clock,
                    ProcessSlot* slot, DetokenizerMetrics* metrics);
  void Connect();
  void Beat();
  // Waits for something to do.
  void Wait();
  void ReadConnectionEvents();
  void SendHelloIfDue();
  // Answers all frames that are there, up to kQueueFrames of them.
  void HandleArrived();
  void HandleFrame(const std::string& frame);
  // Waits while the scheduler's queue is full; gives up when asked to stop.
  void SendReply(const DetokReply& reply);
  bool stop_requested() const;

  const DetokenizerOptions options_;
  const Clock* const clock_;
  ProcessSlot* const slot_;
  DetokenizerMetrics* const metrics_;
  DetokenizerCore core_;

  std::unique_ptr<zmq::context_t> context_;
  std::unique_ptr<zmq::socket_t> requests_;
  std::unique_ptr<zmq::socket_t> replies_;
  std::unique_ptr<zmq::socket_t> connections_;  // monitor events of replies_
  std::deque<std::string> queue_;
  bool hello_due_ = false;
  int64_t hello_sent_ns_ = 0;
};

}  // namespace flotilla
