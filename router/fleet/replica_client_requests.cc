// ReplicaClient: the requests that the replica has.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "router/fleet/replica_client.h"

namespace flotilla {
namespace {

// Not the request's, nor that of too many of them.
bool IsReplicasFault(const v1::Error& error) {
  const auto code = static_cast<absl::StatusCode>(error.code());
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kUnknown || code == absl::StatusCode::kDataLoss;
}

}  // namespace

void ReplicaClient::Submit(const std::shared_ptr<RequestStream>& stream) {
  streams_[stream->id] = stream;
  stream->replica = options_.index;
  stream->submitted_ns = RealClock::Now();
  health_.OnSubmit(stream->submitted_ns);
  load_.OnSubmit(stream->id, stream->prompt_tokens(), std::exchange(stream->cached_tokens, 0));
  Touch();
  v1::RouterFrame frame;
  v1::Submit* submit = frame.mutable_submit();
  submit->set_stream_id(stream->id);
  *submit->mutable_request() = stream->request;
  submit->set_tenant(stream->sink->tenant());
  if (stream->embed.has_value()) *submit->mutable_embed() = *stream->embed;
  if (stream->keyed.has_value()) *submit->mutable_keyed() = *stream->keyed;
  if (auto resume = stream->BeginAttempt()) *submit->add_resume() = *std::move(resume);
  const int64_t waited_ms = (stream->submitted_ns - stream->arrival_ns) / kNsPerMs;
  submit->set_arrival_unix_ms(stream->arrival_unix_ms + waited_ms);
  submit->mutable_request()->set_deadline_ms(
      std::max<int64_t>(1, stream->request.deadline_ms() - waited_ms));
  stream_->Write(std::move(frame));
}

void ReplicaClient::EraseStream(uint64_t stream_id) {
  streams_.erase(stream_id);
  load_.OnAnswered(stream_id);
  Touch();
}

void ReplicaClient::Abort(uint64_t stream_id, v1::FinishReason reason) {
  EraseStream(stream_id);
  TellIfUnused();
  if (!welcomed_) {
    aborted_while_down_.push_back(stream_id);
    return;
  }
  v1::RouterFrame frame;
  frame.mutable_abort()->set_stream_id(stream_id);
  frame.mutable_abort()->set_reason(reason);
  stream_->Write(std::move(frame));
}

void ReplicaClient::Detach(uint64_t stream_id) {
  EraseStream(stream_id);
  TellIfUnused();
  if (!welcomed_) return;  // a Hello without it says the same
  v1::RouterFrame frame;
  frame.mutable_abort()->set_stream_id(stream_id);
  frame.mutable_abort()->set_reason(v1::FINISH_REASON_ABORT);
  frame.mutable_abort()->set_detach(true);
  stream_->Write(std::move(frame));
}

void ReplicaClient::OnStep(v1::Step step) {
  load_.OnStep(step);
  Touch();
  for (const v1::CacheEvent& event : step.cache_events()) pages_.Apply(event);
  if (draining_ != load_.draining()) {
    draining_ = load_.draining();
    deps_.listener->OnReplicaChanged(this);
  }
  SetRecovering(load_.load().recovering());
  for (v1::Delta& delta : *step.mutable_deltas()) {
    const auto found = streams_.find(delta.stream_id());
    if (found == streams_.end()) {
      unpaid_.OnDelta(delta);
      continue;
    }
    const std::shared_ptr<RequestStream> stream = found->second;
    const int64_t submitted_ns = std::exchange(stream->submitted_ns, 0);
    const int64_t now_ns = RealClock::Now();
    stream->refused = submitted_ns != 0 && delta.has_error();
    if (delta.has_error() && IsReplicasFault(delta.error())) health_.OnFailure(now_ns);
    if (submitted_ns != 0 && !delta.has_error()) {
      const double seconds = static_cast<double>(now_ns - submitted_ns) / kNsPerSecond;
      health_.OnAnswer(seconds);
      first_token_.Add(seconds, now_ns);
    }
    for (const v1::ChoiceDelta& choice : delta.choices())
      generated_tokens_ += static_cast<uint64_t>(choice.token_ids_size());
    if (delta.last() || delta.has_error()) streams_.erase(found);
    Touch();
    deps_.listener->OnStreamDelta(stream, std::move(delta));
  }
  TellIfUnused();
}

void ReplicaClient::Lose(const std::shared_ptr<RequestStream>& stream) {
  EraseStream(stream->id);
  deps_.listener->OnStreamLost(stream);
  TellIfUnused();
}

void ReplicaClient::LoseAll() {
  std::vector<std::shared_ptr<RequestStream>> lost;
  for (const auto& [id, stream] : streams_) lost.push_back(stream);
  for (const auto& stream : lost) {
    lost_while_down_.push_back(stream->id);  // a Hello that names it may be on its way
    Lose(stream);
  }
}

void ReplicaClient::FetchLargeResult(uint64_t id, LargeResultCallback callback) {
  ++fetches_;
  flotilla::FetchLargeResult(
      {stub_, deps_.io->get_executor(), deps_.calls}, id,
      [self = shared_from_this(), callback = std::move(callback)](const auto& entries) {
        callback(entries);
        --self->fetches_;
        self->TellIfUnused();
      });
}

void ReplicaClient::FindKeyed(const std::string& key, std::function<void(bool)> callback) {
  flotilla::FindKeyed({stub_, deps_.io->get_executor(), deps_.calls}, key,
                      std::chrono::milliseconds(options_.find_keyed_ms), std::move(callback));
}

void ReplicaClient::HoldSlots(size_t count) {
  held_slots_ += count;
  Touch();
}

void ReplicaClient::FreeSlots(size_t count) {
  held_slots_ -= count;
  Touch();
}

void ReplicaClient::Eject(int64_t now_ns) {
  health_.Eject(now_ns);
  Touch();
}

bool ReplicaClient::full() const {
  if (max_queued_requests_ == 0) return false;
  return load_.waiting_requests() >= max_queued_requests_ ||
         load_.requests() + held_slots_ >= uint64_t{max_running_requests_} + max_queued_requests_;
}

ReplicaView ReplicaClient::view() const {
  ReplicaView view;
  view.index = options_.index;
  view.identity = identity_;
  view.queued_tokens = load_.queued_tokens();
  view.running_tokens = load_.running_tokens();
  view.unreported_tokens = load_.unreported_tokens();
  view.waiting_cached_tokens = load_.cached_tokens();
  view.active_requests = static_cast<uint32_t>(streams_.size());
  return view;
}

RosterRow ReplicaClient::row() {
  RosterRow row;
  row.view = view();
  row.replica = this;
  row.ready_ns = ready_ns_;
  row.well_ns = well_ns_;
  row.held_slots = held_slots_;
  row.ready = ready();
  row.recovering = recovering_;
  row.full = full();
  row.closed = health_.closed();
  return row;
}

}  // namespace flotilla
