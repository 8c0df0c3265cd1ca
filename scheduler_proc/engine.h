// The scheduler process put together: loop, output side, detokenizer link, gRPC server. main.cc
// gives it the model and the segments; tests give it fakes.
//
// Threads: Start, Drain and Stop by one thread; it runs the loop's and the output side's threads
// itself. Ownership: what Inputs points to outlives the Engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scheduler_proc/front/engine_server.h"
#include "scheduler_proc/loop/scheduler_loop.h"
#include "scheduler_proc/output/output_side.h"

namespace flotilla {

struct EngineOptions {
  std::string replica_id = "replica-0";
  std::string model_name = "model";
  uint32_t tp_size = 1;
  uint32_t hidden_size = 0;  // the model's, for clients
  SchedulerConfig core;      // num_pages comes from the ranks
  std::vector<std::string> listen;
  std::string detok_request_address;
  std::string detok_reply_address;
  uint32_t decode_log_interval = 40;
  int64_t step_timeout_ns = 120 * kNsPerSecond;  // until a step that is not answered is lost
  size_t max_large_result_bytes = 256 << 20;
  RouterChannelOptions channel;
  KeyedResultsOptions keyed;
  size_t max_call_unsent_bytes = 4 << 20;
  uint64_t max_grammar_bytes = 64 << 10;  // of a text
  int keepalive_ms = kKeepaliveMs;        // of connections
};

class Engine {
 public:
  struct Inputs {
    const Clock* clock = nullptr;
    const Tokenizer* tokenizer = nullptr;
    const ChatFormat* chat_format = nullptr;  // null: the model can't chat
    GrammarCompiler* grammars = nullptr;      // null: no structured output
    ReplicaControlBlock* control = nullptr;
    const Segment* step_ring = nullptr;
    const Segment* result_ring = nullptr;
    const Segment* collective = nullptr;  // may be null with one rank
    const Segment* flight = nullptr;      // null: no flight recorder
    const TlsFiles* tls = nullptr;        // null: plain text
    std::string model_digest;
    std::string tokenizer_file;  // bytes of "tokenizer"; the engine takes them
    prometheus::Registry* registry = nullptr;
    // The loop ended by itself: a fatal error. Called once, by the loop's thread.
    std::function<void(const Status&)> on_fatal;
  };
  // Binds the detokenizer's sockets, listens and starts the threads; not healthy yet.
  static StatusOr<std::unique_ptr<Engine>> Start(const EngineOptions& options, Inputs inputs);
  ~Engine();  // Stop

  // Not healthy, takes nothing new; tells the routers. Returns at once.
  void BeginDrain();
  // True once no request is live; false at the deadline.
  bool WaitIdle(int64_t deadline_ns) { return front_.WaitIdle(deadline_ns); }
  // Ends calls and threads; live requests are cut off.
  void Stop();

  // True once requests are taken; false at the deadline.
  bool WaitReady(int64_t deadline_ns);
  const std::vector<int>& ports() const { return server_->ports(); }
  const SchedulerLoop& loop() const { return *loop_; }  // look at it after Stop only
  LoadBoard& load() { return load_; }
  RequestFront& front() { return front_; }
  RouterHub& hub() { return hub_; }

 private:
  Engine(const EngineOptions& options, Inputs inputs, RingWriter steps, RingReader results,
         std::unique_ptr<DetokLink> detok);
  Status OnServing(uint32_t num_pages);
  void TellServing(bool serving);
  Status TakeRequests(uint32_t num_pages);
  void RunLoop();

  const EngineOptions options_;
  Inputs inputs_;  // constant but for what info_ takes of it
  const size_t max_token_bytes_;
  RingStepPort port_;
  RingReader results_;
  std::unique_ptr<DetokLink> detok_;
  LoadBoard load_;
  CacheBoard cache_;
  Inbox inbox_;
  OutputQueue outputs_;
  LargeResults large_results_;
  KeyedResults keyed_;
  RequestFront front_;
  RouterHub hub_;
  EngineInfo info_;
  LoopMetrics metrics_;
  EpochManager epochs_;
  std::unique_ptr<OutputSide> output_side_;
  std::optional<FlightRingWriter> flight_;
  std::unique_ptr<SchedulerLoop> loop_;
  std::string fingerprint_;  // of what the ranks compute; the loop's
  std::unique_ptr<EngineServer> server_;
  std::thread loop_thread_;
  std::mutex mutex_;
  std::condition_variable ready_changed_;
  bool ready_ = false;     // guarded by mutex_
  bool draining_ = false;  // guarded by mutex_
  bool stopped_ = false;
};

}  // namespace flotilla
