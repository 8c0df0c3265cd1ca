// Dispatcher: requests whose replica lost or refused them, those that wait for one, and results
// that are fetched apart.
#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/dispatch/dispatcher.h"

namespace flotilla {
namespace {

constexpr int64_t kParkTickMs = 250;
constexpr uint32_t kMostDoublings = 3;

}  // namespace

ApiError Dispatcher::NoReplica(const RequestStream& stream) {
  return Unavailable(StrCat("No replica of '", stream.model->name, "' is ready; try again."),
                     kRetryAfterMs);
}

void Dispatcher::OnStreamLost(const std::shared_ptr<RequestStream>& stream) {
  if (!IsLive(*stream)) return;
  UpdateBackendMetrics(fleet_.at(stream->replica));
  ServeQueueSoon();
  stream->fetching_large = false;
  stream->waiting.clear();
  if (stream->begun() && !CountFailover(stream.get())) {
    Fail(stream, TooManyFailovers(*stream));
    return;
  }
  if (stream->lost_ns == 0) stream->lost_ns = RealClock::Now();
  stream->failures += !fleet_.at(stream->replica).loses_as_planned();
  if (Retry(stream, "replica_lost", /*same_replica_too=*/true) || Park(stream)) return;
  GiveUp(stream);
}

void Dispatcher::OnFault(const std::shared_ptr<RequestStream>& stream, const v1::Delta& delta) {
  ApiError error = FromEngineError(delta.error());
  const bool full = error.code == absl::StatusCode::kResourceExhausted;
  const bool unavailable = error.code == absl::StatusCode::kUnavailable;
  const bool invalid = error.code == absl::StatusCode::kInvalidArgument;
  // What was accepted was right once: whatever is wrong now may be right elsewhere, or later. But
  // what a replica has served and then blames on the request would end so again.
  const bool own_fault = stream->begun() && stream->attempts == 1 && invalid;
  // One that lost it before its first piece may not have come to look at it.
  const bool accepted = (stream->begun() || (stream->accepted() && !invalid)) && !own_fault;
  const bool refused = stream->refused && (full || unavailable || invalid);  // nothing is lost
  ++(refused ? stream->refusals : stream->failures);
  const bool spent = stream->begun() && accepted && !refused && !CountFailover(stream.get());
  const bool elsewhere = accepted || unavailable || full;
  if (elsewhere && !spent && Retry(stream, "refused", /*same_replica_too=*/false)) return;
  // Refused by one that has just begun to drain: those that come a moment later wait, too.
  const bool may_ask = stream->attempts < options_.max_attempts;
  const bool waits = accepted || (unavailable && may_ask && !CanMove(*stream));
  if (waits && !spent && Park(stream)) return;
  if (spent) error = TooManyFailovers(*stream);
  if (full) metrics_->Rejection("replica_full");
  if (delta.has_computed_tokens()) Charge(stream.get(), delta);
  Fail(stream, error);
}

bool Dispatcher::CountFailover(RequestStream* stream) const {
  if (fleet_.at(stream->replica).loses_as_planned()) return true;
  return stream->failovers++ < options_.max_failovers;
}

ApiError Dispatcher::TooManyFailovers(const RequestStream& stream) {
  metrics_->Rejection("max_failovers");
  Log().warn("request lost too many replicas {} {}", Kv("request_id", stream.request.request_id()),
             Kv("lost", stream.failovers));
  return Unavailable(StrCat("Each replica that worked on this request was lost or failed, ",
                            stream.failovers, " times in all; it does not go on again."),
                     kRetryAfterMs);
}

bool Dispatcher::CanMove(const RequestStream& stream) const {
  // To lose it there counts, too.
  const bool counts = !fleet_.at(stream.replica).loses_as_planned();
  if (stream.failures + counts >= options_.max_attempts) return false;
  const std::span<const RosterRow> rows = RowsFor(stream);
  return std::any_of(rows.begin(), rows.end(), [&](const RosterRow& row) {
    return stream.IsNewTo(row.view.index, row.well_ns) && row.view.index != stream.replica &&
           Usable(row, stream) && !row.recovering && (stream.begun() || MayTakeNew(row));
  });
}

bool Dispatcher::Retry(const std::shared_ptr<RequestStream>& stream, const char* reason,
                       bool same_replica_too) {
  // What replicas refuse must not become more work for all of them. What they lost goes on.
  const bool refused_new = !same_replica_too && !stream->accepted();
  stream->failed_ns[stream->replica] = RealClock::Now();
  if ((refused_new ? stream->attempts : stream->failures) >= options_.max_attempts) return false;
  ReplicaClient* replica = PickForRetry(stream.get(), /*again=*/false);
  if (replica == nullptr && same_replica_too) replica = PickForRetry(stream.get(), /*again=*/true);
  if (replica == nullptr) return false;
  if (refused_new && !retry_budget_.Take(RealClock::Now())) {
    metrics_->RetryDenied();
    return false;
  }
  SubmitAgain(stream, replica, reason);
  return true;
}

void Dispatcher::SubmitAgain(const std::shared_ptr<RequestStream>& stream, ReplicaClient* replica,
                             const char* reason) {
  if (stream->attempts++ > 0) {
    if (stream->begun()) {
      metrics_->Failover(reason);
    } else {
      metrics_->Retry(reason);
    }
    Log().info("{} {} {} {} {}", stream->begun() ? "continued" : "retried",
               Kv("request_id", stream->request.request_id()), Kv("reason", reason),
               Kv("replica", replica->replica_id()), Kv("tokens", stream->progress.num_tokens()));
  }
  stream->id = next_id_++;
  Send(stream, replica);
  UpdateBackendMetrics(*replica);
}

bool Dispatcher::Park(const std::shared_ptr<RequestStream>& stream) {
  if (options_.failover_wait_ms == 0 || stream->failures >= options_.max_attempts) return false;
  const int64_t now_ns = RealClock::Now();
  if (stream->parked_ns == 0) stream->parked_ns = now_ns;
  // Less and less often: what they refuse again and again is work for them.
  stream->ask_again_ns =
      now_ns + (kParkTickMs << std::min(stream->refusals, kMostDoublings)) * kNsPerMs;
  stream->parked = true;
  parked_.push_back(stream);
  metrics_->Parked(parked_.size());
  if (parked_.size() == 1) ArmParkTimer();
  return true;
}

int64_t Dispatcher::WaitedNs(const RequestStream& stream) {
  const int64_t now_ns = RealClock::Now();
  return stream.waited_ns + (stream.parked_ns == 0 ? 0 : now_ns - stream.parked_ns);
}

bool Dispatcher::WaitedTooLong(const RequestStream& stream) const {
  return WaitedNs(stream) >= options_.failover_wait_ms * kNsPerMs;
}

// By value: it may go with its first stream.
void Dispatcher::ParkAgain(RequestGroup group) {
  if (WaitedTooLong(*group.streams[0])) return GiveUp(group.streams[0]);
  for (const auto& stream : group.streams) Park(stream);
}

void Dispatcher::ArmParkTimer() {
  park_timer_.expires_after(std::chrono::milliseconds(kParkTickMs));
  park_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    PlaceParked();
    if (!parked_.empty()) ArmParkTimer();
  });
}

void Dispatcher::PlaceParked() {
  for (auto& stream : std::exchange(parked_, {})) {
    if (IsLive(*stream) && !PlaceOrGiveUp(stream)) parked_.push_back(std::move(stream));
  }
  metrics_->Parked(parked_.size());
}

void Dispatcher::EndByDeadline(const RequestStream& stream) {
  finished_.OnEnd(stream, LastReplica(stream), "deadline");
  End(stream);
  Finish(stream, v1::FINISH_REASON_DEADLINE);
}

bool Dispatcher::PlaceOrGiveUp(const std::shared_ptr<RequestStream>& stream) {
  RequestGroup& group = groups_.at(stream->handle);
  if (!group.located) return true;  // what its homes answer places it
  // First, so that a search is for all choices.
  if (RealClock::Now() - stream->arrival_ns >= stream->request.deadline_ms() * kNsPerMs) {
    // Who has nothing for want of a replica must not take that for an answer.
    const bool any_begun =
        std::any_of(group.streams.begin(), group.streams.end(),
                    [](const auto& each) { return each == nullptr || each->begun(); });
    if (any_begun || AnyUsable(*stream))
      EndByDeadline(*stream);
    else
      GiveUp(stream);
    return true;
  }
  if (stream->keyed.has_value() && stream->attempts == 0 && AnyUsable(*stream)) {
    Search(&group);
    return true;
  }
  ReplicaClient* replica = PickForRetry(stream.get(), /*again=*/false);
  if (replica == nullptr && WaitedTooLong(*stream)) {
    GiveUp(stream);
    return true;
  }
  if (replica == nullptr && RealClock::Now() >= stream->ask_again_ns) {
    stream->failed_ns.clear();  // each of them, and not one again and again
    replica = PickForRetry(stream.get(), /*again=*/false);
  }
  if (replica == nullptr) return false;
  SubmitAgain(stream, replica, "replica_lost");
  return true;
}

void Dispatcher::GiveUp(const std::shared_ptr<RequestStream>& stream) {
  if (stream->attempts == 0) {
    metrics_->Rejection("no_replica");
    Fail(stream, NoReplica(*stream));
    return;
  }
  Log().warn("request lost with its replica {}", Kv("request_id", stream->request.request_id()));
  const auto& replicas = fleet_.replicas();
  const bool others = std::any_of(replicas.begin(), replicas.end(), [&](const auto& each) {
    return each.second->ready() && each.second->model()->name == stream->model->name;
  });
  Fail(stream, Unavailable(others && stream->begun()
                               ? "The replica that worked on this request was lost, and those that "
                                 "are there would go on differently; try again."
                               : "The replica that worked on this request was lost; try again.",
                           kRetryAfterMs));
}

void Dispatcher::FailAll(const ApiError& error) {
  failed_all_with_ = error;
  std::vector<std::pair<uint64_t, std::shared_ptr<GenerateSink>>> waiting;
  for (const auto& [handle, group] : groups_) {
    if (group.detached) continue;
    for (const auto& stream : group.streams) {
      if (stream == nullptr) continue;
      waiting.emplace_back(handle, stream->sink);
      break;
    }
  }
  for (const auto& [handle, sink] : waiting) {
    Cancel(handle);
    sink->OnError(error);
  }
}

size_t Dispatcher::aborting() const {
  const auto& replicas = fleet_.replicas();
  return static_cast<size_t>(std::count_if(
      replicas.begin(), replicas.end(), [](const auto& each) { return each.second->aborting(); }));
}

// What follows waits, so that prompt logprobs stay in order and before the first token.
void Dispatcher::FetchLarge(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  stream->fetching_large = true;
  const uint64_t large_id = delta.large_result_id();
  auto shared = std::make_shared<v1::Delta>(std::move(delta));
  fleet_.at(stream->replica)
      .FetchLargeResult(
          large_id, [this, stream, shared, id = stream->id](
                        const std::shared_ptr<std::vector<v1::TokenLogprobs>>& entries) {
            // Else the replica was lost meanwhile, and the stream is parked or runs elsewhere.
            const bool waits = stream->fetching_large && stream->id == id;
            if (!IsLive(*stream) || !waits) return;
            if (entries == nullptr) {
              // Perhaps another consumer of a keyed request has fetched it.
              LeaveReplica(*stream, Leave::kToOthers);
              if (!groups_.at(stream->handle).detached) return OnStreamLost(stream);
              finished_.OnEnd(*stream, LastReplica(*stream), "aborted");
              return End(*stream);
            }
            stream->fetching_large = false;
            stream->progress.OnLargeResult(entries->size());
            shared->clear_large_result_id();
            for (v1::TokenLogprobs& entry : *entries)
              *shared->add_prompt_logprobs() = std::move(entry);
            Deliver(stream, std::move(*shared));
            while (IsLive(*stream) && !stream->fetching_large && !stream->waiting.empty()) {
              v1::Delta next = std::move(stream->waiting.front());
              stream->waiting.pop_front();
              Deliver(stream, std::move(next));
            }
          });
}

}  // namespace flotilla
