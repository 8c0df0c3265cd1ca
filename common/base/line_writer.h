// Writes lines where the reader may stall (a pipe, a terminal, a journal), without stalling too:
// what finds no room within a while is dropped, line by line, and counted. Once there is room again
// a line says how many are missing.
//
// Lines keep their order and never mix; the rest of one that was cut by a stall comes first.
// Threads: any. Errors: where nobody can read any more, lines vanish. SIGPIPE is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/unique_fd.h"

namespace flotilla {

class LineWriter {
 public:
  static constexpr int kMaxWaitMs = 100;
  // The line about so many that were dropped.
  using Note = std::function<std::string(uint64_t dropped)>;

  // `fd` stays the caller's.
  LineWriter(int fd, Note note, int max_wait_ms = kMaxWaitMs);

  // `line` ends in '\n'. Waits for room no more than max_wait_ms a piece, and not at all after it
  // has waited in vain, until a line gets through.
  void Write(std::string_view line);

  // Lines that all writers of this process could not write so far: there was no room for them, no
  // space on the disk, or nobody who reads.
  static uint64_t lines_lost();

 private:
  bool Put(std::string_view line);
  size_t Send(std::string_view bytes);
  bool HasRoom();

  const UniqueFd terminal_;
  const int fd_;
  const Note note_;
  const int max_wait_ms_;
  std::mutex mutex_;  // guards all below
  std::string rest_;  // of a line that has begun
  uint64_t dropped_ = 0;
  bool stalled_ = false;
};

}  // namespace flotilla
