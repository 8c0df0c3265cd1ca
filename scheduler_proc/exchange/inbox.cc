#include "scheduler_proc/exchange/inbox.h"

#include <utility>

namespace flotilla {

Status Inbox::Submit(SubmitCommand command) {
  {
    std::lock_guard lock(mutex_);
    if (submits_ >= capacity_)
      return absl::ResourceExhaustedError(
          StrCat("the replica's inbox is full (", capacity_, " requests); try again later"));
    ++submits_;
    queue_.emplace_back(std::move(command));
  }
  wake_();
  return OkStatus();
}

void Inbox::Abort(ReqId id, Finish reason) { Push(AbortCommand{id, reason}); }

void Inbox::Truncate(ReqId id, uint32_t num_tokens) { Push(TruncateCommand{id, num_tokens}); }

void Inbox::Push(Command command) {
  {
    std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(command));
  }
  wake_();
}

void Inbox::Drain(std::vector<Command>* out) {
  std::lock_guard lock(mutex_);
  out->insert(out->end(), std::make_move_iterator(queue_.begin()),
              std::make_move_iterator(queue_.end()));
  queue_.clear();
  submits_ = 0;
}

}  // namespace flotilla
