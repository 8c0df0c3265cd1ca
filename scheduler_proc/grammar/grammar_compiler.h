// Grammars by their text: from the cache, or compiled in the sandbox by threads of its own, so that
// nobody who serves tokens ever waits for one.
//
// The cache holds what was compiled, least recently used first out, within cache_bytes (of the
// compiled JSON, about what it takes in memory). It is one tokenizer's, so kind and text are the
// whole key. Refusals are kept too, those for time or memory for kRefusalNs only: the machine may
// have been busy. Whoever asks for a text that is being compiled waits for that.
//
// What compiled elsewhere, for an answer that goes on here, is compiled before the others and with
// more time, whatever was refused for want of it and whoever asked for the same text before; these
// wait with it, if their turn had not come.
//
// Threads: Compile from any, Stop from one; `done` runs once, on the caller's thread or one of
// ours. Ownership: no `done` is left when Stop or the destructor returns. Errors (to `done`):
// InvalidArgument beginning with the field of StructuredOutput; ResourceExhausted: too many wait,
// or so many that there is no time left for it; Unavailable.
#pragma once

#include <prometheus/registry.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "scheduler_proc/grammar/compile_sandbox.h"

namespace flotilla {

class GrammarMetrics {
 public:
  explicit GrammarMetrics(prometheus::Registry* registry);

  prometheus::Counter &hits, &compiled, &invalid, &timeout, &busy;
  prometheus::Histogram& seconds;
  prometheus::Gauge& cache_bytes;
};

class GrammarCompiler {
 public:
  struct Options {
    CompileSandbox::Options sandbox;
    uint32_t threads = 2;
    uint32_t timeout_ms = 2000;   // from Compile to `done`, waiting included; of a new request
    uint32_t max_waiting = 1024;  // requests
    uint64_t cache_bytes = 128 << 20;
  };
  using Result = StatusOr<std::shared_ptr<const Grammar>>;
  using Done = std::function<void(Result)>;

  static StatusOr<std::unique_ptr<GrammarCompiler>> Start(const Options& options,
                                                          const VocabularyTokens& tokens,
                                                          const Clock* clock,
                                                          prometheus::Registry* registry);
  ~GrammarCompiler();

  enum class For { kNewRequest, kBegunElsewhere };
  void Compile(const GrammarSpec& spec, For whom, Done done);
  // Ends the threads; those that wait, or come later for what is not in the cache, get Unavailable.
  void Stop();

  static constexpr int64_t kRefusalNs = 60 * kNsPerSecond;
  static constexpr uint32_t kBegunElsewhereTimes = 5;  // as long as a new request's

 private:
  using Key = std::pair<GrammarKind, std::string>;
  struct Entry {
    Result result = absl::UnknownError("not compiled");
    size_t bytes = 0;
    int64_t expires_ns = INT64_MAX;
    std::list<Key>::iterator age = {};  // in ages_
  };
  struct Job {
    GrammarSpec spec;
    For whom;
    int64_t deadline_ns;
  };
  struct Waiter {
    Done done;
    For whom;
  };

  GrammarCompiler(const Options& options, const VocabularyTokens& tokens, const Clock* clock,
                  prometheus::Registry* registry);
  void RunThread();
  Entry CompileNow(const Job& job);
  void Finish(const Job& job, Entry entry);
  void QueueLocked(const GrammarSpec& spec, For whom);
  // Whether a new request's job of this key waited there.
  bool TakeFromQueueLocked(const Key& key);
  // Of those begun elsewhere no lack counts.
  const Entry* FindLocked(const Key& key, For whom);
  void StoreLocked(const Key& key, Entry entry);
  void EvictLocked(std::map<Key, Entry>::iterator it);

  const Options options_;
  const Clock* const clock_;
  const XGrammarVocabulary vocabulary_;
  GrammarMetrics metrics_;
  std::unique_ptr<CompileSandbox> sandbox_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<Key, Entry> cache_;
  std::list<Key> ages_;  // most recently used first
  size_t cache_bytes_ = 0;
  std::deque<Job> queue_;
  std::map<Key, std::vector<Waiter>> waiting_;  // of those in the queue or being compiled
  size_t num_waiting_ = 0;                      // in waiting_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace flotilla
