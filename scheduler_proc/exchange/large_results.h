// Results too large for a frame, kept until fetched, at most 60 s and max_bytes in all (the oldest
// go first). Ids are random, so that a client can't fetch another's. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "flotilla/v1/inference.pb.h"

namespace flotilla {

inline constexpr size_t kLargeResultBytes = 256 << 10;

class LargeResults {
 public:
  LargeResults(const Clock* clock, size_t max_bytes) : clock_(clock), max_bytes_(max_bytes) {}

  // 0: it is larger than all that may be kept.
  uint64_t Put(std::vector<v1::TokenLogprobs> entries);
  // Removes it. Empty: unknown, expired or already fetched.
  std::optional<std::vector<v1::TokenLogprobs>> Take(uint64_t id);
  size_t bytes() const;
  size_t max_bytes() const { return max_bytes_; }

 private:
  struct Entry {
    std::vector<v1::TokenLogprobs> entries;
    size_t bytes = 0;
    int64_t expires_ns = 0;
  };
  void DropLocked(size_t needed);

  const Clock* const clock_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> results_;  // guarded by mutex_
  size_t bytes_ = 0;                   // guarded by mutex_
};

// Moves entries [*begin, …) of about kLargeResultBytes to *response; advances *begin.
void TakePiece(std::vector<v1::TokenLogprobs>* entries, size_t* begin,
               v1::GenerateResponse* response);

}  // namespace flotilla
