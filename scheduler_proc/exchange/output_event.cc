#include "scheduler_proc/exchange/output_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <iterator>

#include "common/base/check.h"

namespace flotilla {

OutputQueue::OutputQueue() : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(event_fd_.valid());
}

void OutputQueue::Push(std::vector<OutputEvent>* events) {
  if (events->empty()) return;
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    if (was_empty) {
      queue_.swap(*events);
    } else {
      queue_.insert(queue_.end(), std::make_move_iterator(events->begin()),
                    std::make_move_iterator(events->end()));
    }
  }
  events->clear();
  if (was_empty) Wake();
}

void OutputQueue::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is at its maximum: then it is readable anyway.
  [[maybe_unused]] const ssize_t n = write(event_fd_.get(), &one, sizeof(one));
}

void OutputQueue::Drain(std::vector<OutputEvent>* out) {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(event_fd_.get(), &count, sizeof(count));
  std::lock_guard lock(mutex_);
  if (out->empty()) {
    out->swap(queue_);
    return;
  }
  out->insert(out->end(), std::make_move_iterator(queue_.begin()),
              std::make_move_iterator(queue_.end()));
  queue_.clear();
}

}  // namespace flotilla
