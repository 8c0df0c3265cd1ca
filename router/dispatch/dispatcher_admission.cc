// Dispatcher: new requests that no replica may take now.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/dispatch/dispatcher.h"

namespace flotilla {
namespace {

// Room that no event tells of: another router's requests have ended, a circuit has closed.
constexpr int64_t kAdmissionTickNs = 250 * kNsPerMs;

}  // namespace

// A keyed one waits for its homes, the others for any replica of the model; who needs a newer one
// holds nobody up who does not.
std::string Dispatcher::LaneOf(const RequestStream& stream) const {
  std::string lane = StrCat(stream.model->name, " ", stream.model->tokenizer_sha256);
  if (stream.request.structured().has_structural_tag()) StrAppend(&lane, " tags");
  if (!stream.keyed.has_value()) return lane;
  std::vector<uint32_t> homes;
  for (const RosterRow* home : HomesOf(stream)) homes.push_back(home->view.index);
  std::sort(homes.begin(), homes.end());
  for (const uint32_t home : homes) StrAppend(&lane, " ", home);
  return lane;
}

// Whose first has the highest priority, or came first. Lanes may want the same replica.
std::vector<std::string>::iterator Dispatcher::NextLane(std::vector<std::string>* lanes) {
  const auto before = [this](const std::string& a, const std::string& b) {
    const uint64_t first = admission_.Next(a), other = admission_.Next(b);
    const int32_t mine = groups_.at(first).streams[0]->request.priority();
    const int32_t theirs = groups_.at(other).streams[0]->request.priority();
    return mine != theirs ? mine > theirs : first < other;
  };
  std::erase_if(*lanes, [this](const std::string& lane) { return !admission_.Waits(lane); });
  return std::min_element(lanes->begin(), lanes->end(), before);
}

bool Dispatcher::MayTakeNew(const RosterRow& row) const {
  const uint32_t most = options_.max_inflight_per_replica;
  if (most > 0 && row.view.active_requests + row.held_slots >= most) return false;
  return !admission_.enabled() || !row.full;
}

bool Dispatcher::AnyUsable(const RequestStream& stream) const {
  const std::span<const RosterRow> rows = RowsFor(stream);
  return std::any_of(rows.begin(), rows.end(),
                     [&](const RosterRow& row) { return Usable(row, stream); });
}

std::variant<uint64_t, ApiError> Dispatcher::Wait(RequestGroup group) {
  const RequestStream& first = *group.streams[0];
  if (admission_.enabled() || AnyUsable(first)) return WaitInQueue(std::move(group));
  if (options_.failover_wait_ms == 0) {
    metrics_->Rejection("no_replica");
    return NoReplica(first);
  }
  for (const auto& stream : group.streams) Park(stream);
  return Enter(std::move(group))->streams[0]->handle;
}

std::variant<uint64_t, ApiError> Dispatcher::WaitInQueue(RequestGroup group) {
  const RequestStream& first = *group.streams[0];
  const std::string& tenant = first.sink->tenant();
  const int64_t now_ns = RealClock::Now();
  const int64_t wait_ms =
      std::min(options_.admission_queue_timeout_ms, first.request.deadline_ms());
  const auto refusal =
      admission_.Push({first.handle, LaneOf(first), tenant, first.request.priority(),
                       first.arrival_ns + wait_ms * kNsPerMs},
                      now_ns);
  if (refusal.has_value()) return NotAdmitted(*refusal, tenant);
  metrics_->AdmissionDepth(admission_.size());
  if (admission_.size() == 1) ArmAdmissionTimer();
  for (const auto& stream : group.streams) stream->parked = true;
  return Enter(std::move(group))->streams[0]->handle;
}

ApiError Dispatcher::NotAdmitted(AdmissionQueue::Refusal refusal, const std::string& tenant) {
  const bool own = refusal == AdmissionQueue::Refusal::kTenantFull;
  metrics_->Rejection(own ? "admission_tenant" : "admission_full");
  ApiError error;
  error.code = absl::StatusCode::kResourceExhausted;
  error.message = own ? "As many of your requests as may wait do so already; try again."
                      : "All replicas are busy, and no more requests may wait; try again.";
  error.retry_after_ms = admission_.RetryAfterMs(refusal, tenant, RealClock::Now());
  return error;
}

void Dispatcher::LeaveQueue(uint64_t handle) {
  admission_.Remove(handle);
  metrics_->AdmissionDepth(admission_.size());
}

// Later, since whoever ends a request may be in the midst of it.
void Dispatcher::ServeQueueSoon() {
  if (admission_.size() == 0 || std::exchange(serve_posted_, true)) return;
  boost::asio::post(*io_, [this] {
    serve_posted_ = false;
    if (!stopped_) ServeQueue();
  });
}

void Dispatcher::ServeQueue() {
  PlaceParked();  // they came before
  std::vector<std::string> lanes = admission_.lanes();
  for (auto lane = NextLane(&lanes); lane != lanes.end(); lane = NextLane(&lanes)) {
    RequestGroup& group = groups_.at(admission_.Next(*lane));
    ReplicaClient* replica = Pick(group.streams[0].get(), /*again=*/false);
    if (replica == nullptr) {
      lanes.erase(lane);
      continue;
    }
    if (group.streams[0]->keyed.has_value()) {
      HoldPlace(&group, replica);
      Search(&group);
    } else {
      CountAdmitted(group.streams[0]->handle);
      Dispatch(&group, replica);
    }
  }
  for (const uint64_t handle : admission_.TakeExpired(RealClock::Now())) {
    const auto found = groups_.find(handle);
    // What the end of one tells its client may end others of the same client.
    if (found != groups_.end()) EndExpired(found->second);
  }
  metrics_->AdmissionDepth(admission_.size());
}

void Dispatcher::CountAdmitted(uint64_t handle) {
  const int64_t waited_ns = admission_.Take(handle, RealClock::Now());
  metrics_->AdmissionWait(static_cast<double>(waited_ns) / kNsPerSecond);
  metrics_->AdmissionDepth(admission_.size());
}

void Dispatcher::HoldPlace(RequestGroup* group, ReplicaClient* replica) {
  admission_.Hold(group->streams[0]->handle);
  replica->HoldSlots(group->num_live);
  group->slots_at = replica->options().index;
}

bool Dispatcher::FreeSlots(RequestGroup* group) {
  if (!group->slots_at.has_value()) return false;
  if (ReplicaClient* replica = fleet_.Find(*group->slots_at)) replica->FreeSlots(group->num_live);
  group->slots_at.reset();
  return true;
}

// By value: it may go with its first stream.
void Dispatcher::EndExpired(RequestGroup group) {
  const RequestStream& first = *group.streams[0];
  if (!AnyUsable(first)) {
    metrics_->Rejection("no_replica");
    Fail(group.streams[0], NoReplica(first));
    return;
  }
  if (first.request.deadline_ms() <= options_.admission_queue_timeout_ms) {
    for (const auto& stream : group.streams) {
      if (!IsLive(*stream)) return;  // told the end of one, the client left
      EndByDeadline(*stream);
    }
    return;
  }
  metrics_->Rejection("admission_timeout");
  ApiError error;
  error.code = absl::StatusCode::kResourceExhausted;
  error.message = StrCat("All replicas were busy for ", options_.admission_queue_timeout_ms / 1000,
                         " s; try again.");
  error.retry_after_ms = admission_.RetryAfterMs(AdmissionQueue::Refusal::kFull,
                                                 first.sink->tenant(), RealClock::Now());
  Fail(group.streams[0], error);
}

void Dispatcher::ArmAdmissionTimer() {
  const int64_t wait_ns =
      std::min(kAdmissionTickNs, admission_.next_expiry_ns() - RealClock::Now());
  admission_timer_.expires_after(std::chrono::nanoseconds(std::max<int64_t>(wait_ns, 0)));
  admission_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    ServeQueue();
    if (admission_.size() > 0) ArmAdmissionTimer();
  });
}

}  // namespace flotilla
