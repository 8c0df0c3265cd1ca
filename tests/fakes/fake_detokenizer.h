// A detokenizer in a thread, over real ZeroMQ sockets: incremental text by IncrementalDetokenizer,
// stop strings by searching the whole text. Kill() loses everything it knew; Restart() says hello
// as the next incarnation. Threads: tests call from one thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/text/tokenizer.h"

namespace flotilla {

class FakeDetokenizer {
 public:
  // Connects (not binds) to the scheduler's two sockets.
  FakeDetokenizer(const Tokenizer* tokenizer, std::string request_address,
                  std::string reply_address);
  ~FakeDetokenizer() { Kill(); }

  void Kill();
  void Restart();
  // The thread dies by itself after this many more frames, before it answers the last; -1: never.
  void DieAfter(int frames) { die_after_.store(frames); }
  bool dead() const { return dead_.load(); }

 private:
  void Run(uint32_t incarnation);

  const Tokenizer* const tokenizer_;
  const std::string request_address_;
  const std::string reply_address_;
  uint32_t incarnation_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> dead_{false};
  std::atomic<int> die_after_{-1};
  std::thread thread_;
};

}  // namespace flotilla
