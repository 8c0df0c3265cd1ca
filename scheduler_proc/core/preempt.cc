// Scheduler::Impl: under a policy that preempts, those who run give way to a waiting request of
// higher priority (the difference is more than priority_scheduling_preemption_threshold) for which
// there is no slot or no pages. The lowest priority gives way first, then the last to come, and
// nobody if all who may would not be enough. A preempted request waits with its tokens, at the
// front of its own priority.
//
// Source: SGLang's PrefillAdder.preempt_to_schedule; the fewest that suffice are ours.
#include <algorithm>

#include "common/base/check.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {

// Who runs at the front is served first, who runs at the back gives way first.
bool Scheduler::Impl::RunsBefore(const Req& a, const Req& b) const {
  if (waiting_queue.policy().preempts && a.spec.priority != b.spec.priority) {
    return a.spec.priority > b.spec.priority;
  }
  return a.seq < b.seq;
}

bool Scheduler::Impl::GivesWay(const Req& running, const Req& waiting) const {
  return int64_t{waiting.spec.priority} - running.spec.priority >
         int64_t{config.priority_scheduling_preemption_threshold};
}

// False, and nothing done: someone must give way, but a plan is in flight.
bool Scheduler::Impl::PreemptRunning(ScheduleBatch* batch) {
  if (!waiting_queue.policy().preempts || running_batch.empty()) return true;
  const size_t num_kept = NumKept(batch);
  if (num_kept == running_batch.size()) return true;
  if (num_in_flight > 0) return false;
  while (running_batch.size() > num_kept) {
    Retract(running_batch.back());
    ++stats.preemptions;
  }
  return true;
}

// Nobody gives way for a request that the PrefillAdder will hold back: a prompt that is not yet
// computed, or just now is, has much of its own.
bool Scheduler::Impl::PrefixIsBeingComputed(const Req& waiting) const {
  const auto in_flight = std::span(result_queue).first(num_in_flight);
  return std::ranges::any_of(
             in_flight,
             [&](const ScheduleBatch& batch) { return ComputesPrefixOf(kv, batch, waiting); }) ||
         std::ranges::any_of(running_batch, [&](const Req* req) {
           return !req->is_decode() && ComputesPrefixOf(kv, *req, waiting);
         });
}

// How many of running_batch, from its front, keep their slots. Goes through those who wait as the
// PrefillAdder will after it, with their prefixes locked meanwhile.
size_t Scheduler::Impl::NumKept(ScheduleBatch* batch) {
  const std::span<Req* const> running = running_batch;
  size_t kept = running.size();
  uint32_t waiting_slots = 0, held_back = 0;
  uint64_t waiting_pages = 0, waiting_tokens = 0;
  waiting_queue.BeginRound();
  preempting.clear();
  const auto reserved = [&](const Req& req) {
    return ReservedPages(config, kv, batch->new_token_ratio, req);
  };
  while (waiting_tokens < config.chunked_prefill_size) {
    Req* req = waiting_queue.Next();
    if (req == nullptr || kept == 0 || !GivesWay(*running[kept - 1], *req)) break;
    if (PrefixIsBeingComputed(*req)) {
      if (++held_back == kMaxHeldBackInAStep) break;
      continue;
    }
    kv.TakePrefix(req);
    preempting.push_back(req);
    const uint64_t pages = waiting_pages + reserved(*req);
    const auto suffices = [&](size_t num_kept) {
      const size_t free_slots = slots.num_free() + running.size() - num_kept;
      if (free_slots <= waiting_slots) return false;
      uint64_t needed = pages;
      for (const Req* other : running.first(num_kept)) needed += reserved(*other);
      // One alone always fits.
      return (num_kept == 0 && waiting_slots == 0) ||
             needed <= kv.AvailableWithout(running.subspan(num_kept));
    };
    if (!suffices(kept)) {
      const auto stays = [&](const Req* other) { return !GivesWay(*other, *req); };
      auto fewest = static_cast<size_t>(
          std::partition_point(running.begin(), running.end(), stays) - running.begin());
      if (!suffices(fewest)) break;
      while (kept - fewest > 1) {  // suffices(fewest), and not (kept)
        const size_t middle = fewest + (kept - fewest) / 2;
        (suffices(middle) ? fewest : kept) = middle;
      }
      kept = fewest;
    }
    ++waiting_slots;
    waiting_pages = pages;
    waiting_tokens += req->num_pending();
  }
  waiting_queue.EndRound();
  for (Req* req : preempting) kv.ReturnPrefix(req);
  return kept;
}

}  // namespace flotilla
