// The scheduler's side of the compile sandbox: starts flotilla-grammar, hands it grammars, and
// starts it again should it be gone.
//
// Compile blocks its thread until the answer is there or the time is over; the time is the child's
// wall time, so that a grammar is refused in time however busy the cores are. Threads: Compile from
// any, several at once. Ownership: the process ends when the CompileSandbox does.
// Errors: InvalidArgument: the grammar is not one, or its result too large; DeadlineExceeded: it
// takes longer; ResourceExhausted: its process ended, by a limit or by somebody; Unavailable: the
// sandbox can't be started, was ended twice, or hangs, and then is ended. Messages don't name the
// field.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "common/base/unique_fd.h"
#include "scheduler_proc/grammar/compile_frames.h"
#include "scheduler_proc/grammar/sandbox_io.h"

namespace flotilla {

class CompileSandbox {
 public:
  struct Options {
    std::string program;                 // flotilla-grammar
    uint64_t memory_bytes = 512 << 20;   // a compile
    uint64_t compiled_bytes = 16 << 20;  // of its result
  };
  // Starts the process.
  static StatusOr<std::unique_ptr<CompileSandbox>> Start(const Options& options,
                                                         const VocabularyTokens& tokens);
  ~CompileSandbox();

  // As CompileToJson, within limits. time_ms: from now.
  StatusOr<std::string> Compile(const GrammarSpec& spec, uint32_t time_ms);

  int pid() const;  // for tests

 private:
  explicit CompileSandbox(const Options& options) : options_(options) {}
  Status SpawnLocked();
  void StopLocked();
  // To which of the processes started so far it went.
  StatusOr<uint64_t> SendJob(int fd);
  void StopIfStill(uint64_t process);
  bool Gone(uint64_t process);
  StatusOr<std::string> CompileOnce(const GrammarSpec& spec, uint32_t time_ms);

  const Options options_;
  UniqueFd vocabulary_;  // memfd
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  UniqueFd control_;
  int pid_ = -1;
  uint64_t spawns_ = 0;
};

}  // namespace flotilla
