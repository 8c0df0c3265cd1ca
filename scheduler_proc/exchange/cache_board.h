// What the prefix cache holds, for routers: the loop publishes its page events, each router's
// channel takes those that it has not had.
//
// The last kRingEvents events are kept. A router that is new, or that has missed more, starts with
// CLEARED and a snapshot. The set that snapshots are made from follows behind, as far as the ring
// makes it, so that the loop pays for it only what it publishes.
// Threads: any. Bounds: kRingEvents events, the cache's pages once, and once for each router that
// has a snapshot on its way.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "flotilla/v1/engine.pb.h"
#include "scheduler_proc/core/page_event.h"

namespace flotilla {

class CacheBoard {
 public:
  static constexpr uint64_t kRingEvents = 1 << 16;
  static constexpr size_t kMaxHashesPerStep = 8192;

  explicit CacheBoard(uint32_t page_size) : page_size_(page_size), ring_(kRingEvents) {}

  // By the loop. Empties the log.
  void Publish(PageLog* log);

  // A router's place in the events.
  struct Cursor {
    bool begun = false;
    uint64_t next = 0;               // number of an event
    std::vector<uint64_t> snapshot;  // of what was there before it, not sent yet
  };
  // Appends what comes next, at most kMaxHashesPerStep hashes. True: there is more.
  bool Take(Cursor* cursor, v1::Step* step);

 private:
  void ApplyOneLocked();
  void SnapshotLocked(Cursor* cursor);

  const uint32_t page_size_;  // tokens
  std::mutex mutex_;
  // All below guarded by mutex_.
  std::vector<PageEvent> ring_;
  uint64_t end_ = 0;      // number of the next event
  uint64_t applied_ = 0;  // events that pages_ knows of
  absl::flat_hash_set<uint64_t> pages_;
};

}  // namespace flotilla
