// What the bodies of HTTP requests take together until these are answered, and how fast large ones
// are read, so that a flood of them leaves memory and the io thread's time to others.
//
// An eighth of the room is for bodies of at most kFreeBodyBytes: whoever holds all that large ones
// may have keeps nobody with an ordinary request out. Threads: the io thread, where the last copy
// of a lease is destroyed, too. Ownership: a lease may outlive the memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace flotilla {

inline constexpr uint64_t kFreeBodyBytes = 64 << 10;

struct BodyRoom {
  std::atomic<bool> abandoned = false;  // the client has left: nobody wants what is made of it
  uint64_t bytes = 0;                   // the io thread's
};
using BodyLease = std::shared_ptr<BodyRoom>;

class BodyMemory {
 public:
  // on_change: told each change of what is held, in bytes, while the memory is there.
  BodyMemory(uint64_t most_bytes, uint64_t bytes_per_s, std::function<void(int64_t)> on_change);
  ~BodyMemory();
  BodyMemory(const BodyMemory&) = delete;

  // Null: there is no room.
  BodyLease Reserve(uint64_t bytes);
  // False: there is no room for more; nothing has changed.
  bool Resize(const BodyLease& lease, uint64_t bytes);
  // Nanoseconds until whoever has read `bytes` of a body, beyond the first kFreeBodyBytes of it,
  // may read on: all of them together get bytes_per_s.
  int64_t Pace(uint64_t bytes);

 private:
  struct State;
  const std::shared_ptr<State> state_;
  const uint64_t bytes_per_s_;
  int64_t due_ns_ = 0;  // when what was read has had its time
};

}  // namespace flotilla
