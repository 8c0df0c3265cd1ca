#include "scheduler_proc/exchange/cache_board.h"

#include <algorithm>

namespace flotilla {
namespace {

v1::CacheEvent::Kind ToProto(PageEvent::Kind kind) {
  switch (kind) {
    case PageEvent::Kind::kStored:
      return v1::CacheEvent::STORED;
    case PageEvent::Kind::kRemoved:
      return v1::CacheEvent::REMOVED;
    case PageEvent::Kind::kCleared:
      break;
  }
  return v1::CacheEvent::CLEARED;
}

// The step's last event if it is of this kind, else a new one.
v1::CacheEvent* EventOf(v1::CacheEvent::Kind kind, uint32_t page_size, v1::Step* step) {
  const int count = step->cache_events_size();
  if (count > 0 && step->cache_events(count - 1).kind() == kind)
    return step->mutable_cache_events(count - 1);
  v1::CacheEvent* event = step->add_cache_events();
  event->set_kind(kind);
  event->set_page_size(page_size);
  return event;
}

}  // namespace

void CacheBoard::Publish(PageLog* log) {
  if (log->empty()) return;
  std::lock_guard lock(mutex_);
  for (const PageEvent& event : *log) {
    if (end_ - applied_ == kRingEvents) ApplyOneLocked();
    ring_[end_++ % kRingEvents] = event;
  }
  log->clear();
}

void CacheBoard::ApplyOneLocked() {
  const PageEvent& event = ring_[applied_++ % kRingEvents];
  if (event.kind == PageEvent::Kind::kStored) {
    pages_.insert(event.hash);
  } else if (event.kind == PageEvent::Kind::kRemoved) {
    pages_.erase(event.hash);
  } else {
    pages_.clear();
  }
}

void CacheBoard::SnapshotLocked(Cursor* cursor) {
  while (applied_ < end_) ApplyOneLocked();
  cursor->begun = true;
  cursor->next = end_;
  cursor->snapshot.assign(pages_.begin(), pages_.end());
}

bool CacheBoard::Take(Cursor* cursor, v1::Step* step) {
  std::lock_guard lock(mutex_);
  if (!cursor->begun || end_ - cursor->next > kRingEvents) {
    SnapshotLocked(cursor);
    EventOf(v1::CacheEvent::CLEARED, page_size_, step);
  }
  size_t left = kMaxHashesPerStep;
  if (!cursor->snapshot.empty()) {
    const size_t count = std::min(left, cursor->snapshot.size());
    const auto begin = cursor->snapshot.end() - static_cast<std::ptrdiff_t>(count);
    EventOf(v1::CacheEvent::STORED, page_size_, step)
        ->mutable_page_hashes()
        ->Add(begin, cursor->snapshot.end());
    cursor->snapshot.erase(begin, cursor->snapshot.end());
    if (cursor->snapshot.empty()) cursor->snapshot.shrink_to_fit();
    left -= count;
  }
  for (; left > 0 && cursor->next < end_; --left, ++cursor->next) {
    const PageEvent& event = ring_[cursor->next % kRingEvents];
    v1::CacheEvent* out = EventOf(ToProto(event.kind), page_size_, step);
    if (event.kind != PageEvent::Kind::kCleared) out->add_page_hashes(event.hash);
  }
  return !cursor->snapshot.empty() || cursor->next < end_;
}

}  // namespace flotilla
