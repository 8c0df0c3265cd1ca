#include "router/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/rpc/choices.h"

namespace flotilla {
namespace {

constexpr int64_t kRetryAfterMs = 1000;

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string RandomId() {
  std::random_device device;
  char text[24];
  std::snprintf(text, sizeof(text), "%08x%08x", device(), device());
  return StrCat("router-", text);
}

void Record(const v1::Delta& delta, RequestStream* stream) {
  stream->prompt_logprobs += static_cast<uint32_t>(delta.prompt_logprobs_size());
  for (const v1::ChoiceDelta& choice : delta.choices()) {
    ChoiceProgress& progress = stream->progress;
    progress.output_ids.insert(progress.output_ids.end(), choice.token_ids().begin(),
                               choice.token_ids().end());
    progress.emitted_bytes += choice.text().size();
    for (const v1::TokenLogprobs& entry : choice.logprobs())
      progress.cumulative_logprob += entry.logprob();
    if (choice.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
      progress.finish_reason = choice.finish_reason();
  }
}

}  // namespace

Dispatcher::Dispatcher(DispatcherOptions options, boost::asio::io_context* io,
                       boost::asio::thread_pool* pool, CallTracker* calls, RouterMetrics* metrics)
    : options_(std::move(options)),
      io_(io),
      calls_(calls),
      metrics_(metrics),
      tokenizers_(io->get_executor(), pool, calls) {
  const std::string router_id = RandomId();
  for (const std::string& address : options_.replicas) {
    ReplicaOptions replica;
    replica.address = address;
    replica.index = static_cast<uint32_t>(replicas_.size());
    replica.router_id = router_id;
    replica.backoff_min_ms = options_.backoff_min_ms;
    replica.backoff_max_ms = options_.backoff_max_ms;
    replicas_.push_back(
        std::make_shared<ReplicaClient>(std::move(replica), io_, &tokenizers_, calls_, this));
  }
  backend_labels_.resize(replicas_.size());
}

Dispatcher::~Dispatcher() = default;

void Dispatcher::Start() {
  for (const auto& replica : replicas_) {
    UpdateBackendMetrics(*replica);
    replica->Start();
  }
}

void Dispatcher::Stop() {
  groups_.clear();
  num_streams_ = 0;
  for (const auto& replica : replicas_) replica->Stop();
}

// --- Models and health -------------------------------------------------------------------------

std::shared_ptr<const ModelTable> Dispatcher::models() const {
  std::lock_guard<std::mutex> lock(models_mutex_);
  return models_;
}

void Dispatcher::OnReplicaChanged(ReplicaClient* replica) {
  if (replica->ready()) RebuildModels();
  UpdateBackendMetrics(*replica);
  const bool any = std::any_of(replicas_.begin(), replicas_.end(),
                               [](const auto& each) { return each->ready(); });
  ready_.store(any, std::memory_order_release);
  if (on_ready_changed_) on_ready_changed_();
}

// What each replica serves, or served last; of two under one name a ready one's.
void Dispatcher::RebuildModels() {
  auto table = std::make_shared<ModelTable>();
  for (const auto& replica : replicas_) {
    const std::shared_ptr<const ModelHandle>& model = replica->model();
    if (model == nullptr) continue;
    if (replica->ready() || !table->contains(model->name)) (*table)[model->name] = model;
  }
  std::lock_guard<std::mutex> lock(models_mutex_);
  models_ = std::move(table);
}

// A replica is known by its address until it has told its id.
void Dispatcher::UpdateBackendMetrics(const ReplicaClient& replica) {
  std::string& label = backend_labels_[replica.options().index];
  if (!label.empty() && label != replica.replica_id()) metrics_->ForgetBackend(label);
  label = replica.replica_id();
  metrics_->Backend(label, replica.ready(), static_cast<double>(replica.active()));
}

// --- Requests ----------------------------------------------------------------------------------

std::variant<uint64_t, ApiError> Dispatcher::Submit(const v1::GenerateRequest& request,
                                                    const std::shared_ptr<const ModelHandle>& model,
                                                    const std::shared_ptr<GenerateSink>& sink) {
  RequestGroup group;
  for (size_t i = 0; i < ChoicesOf(request).num_candidates; ++i) {
    group.streams.push_back(std::make_shared<RequestStream>());
    group.streams.back()->request = ChoiceRequest(request, i);
    group.streams.back()->model = model;
    group.streams.back()->sink = sink;
  }
  return SubmitGroup(std::move(group));
}

std::variant<uint64_t, ApiError> Dispatcher::SubmitEmbed(v1::GenerateRequest request,
                                                         const v1::EmbedOptions& embed,
                                                         std::shared_ptr<const ModelHandle> model,
                                                         std::shared_ptr<GenerateSink> sink) {
  RequestGroup group;
  group.streams.push_back(std::make_shared<RequestStream>());
  RequestStream& stream = *group.streams[0];
  stream.request = std::move(request);
  stream.embed = embed;
  stream.model = std::move(model);
  stream.sink = std::move(sink);
  return SubmitGroup(std::move(group));
}

std::variant<uint64_t, ApiError> Dispatcher::SubmitGroup(RequestGroup group) {
  group.num_live = group.streams.size();
  if (num_streams_ + group.num_live > options_.max_requests) {
    metrics_->Rejection("max_requests");
    ApiError error = Unavailable(
        StrCat("This router already has ", num_streams_, " requests; try again."), kRetryAfterMs);
    error.code = absl::StatusCode::kResourceExhausted;
    return error;
  }
  const uint64_t handle = next_id_;
  const int64_t arrival_unix_ms = UnixMs();
  for (size_t i = 0; i < group.num_live; ++i) {
    RequestStream& stream = *group.streams[i];
    stream.handle = handle;
    stream.choice = i;
    stream.id = next_id_++;
    stream.arrival_unix_ms = arrival_unix_ms;
    if (!stream.request.has_deadline_ms() || stream.request.deadline_ms() > options_.max_request_ms)
      stream.request.set_deadline_ms(options_.max_request_ms);
  }
  const RequestStream& first = *group.streams[0];
  ReplicaClient* replica = Pick(first, /*again=*/false);
  if (replica == nullptr) {
    metrics_->Rejection("no_replica");
    return Unavailable(StrCat("No replica of '", first.model->name, "' is ready; try again."),
                       kRetryAfterMs);
  }
  Log().debug("dispatched {} {}", Kv("request_id", first.request.request_id()),
              Kv("replica", replica->replica_id()));
  group.replica = replica->options().index;
  num_streams_ += group.num_live;
  for (const auto& stream : group.streams) replica->Submit(stream);
  groups_.emplace(handle, std::move(group));
  UpdateBackendMetrics(*replica);
  return handle;
}

bool Dispatcher::Usable(const ReplicaClient& replica, const RequestStream& stream) const {
  return replica.ready() && replica.model()->name == stream.model->name &&
         replica.model()->tokenizer_sha256 == stream.model->tokenizer_sha256;
}

ReplicaClient* Dispatcher::Pick(const RequestStream& stream, bool again) {
  std::vector<ReplicaView> candidates;
  for (const auto& replica : replicas_) {
    const bool tried = stream.tried.contains(replica->options().index);
    if (Usable(*replica, stream) && (again || !tried)) candidates.push_back(replica->view());
  }
  if (candidates.empty()) return nullptr;
  std::unique_ptr<Policy>& policy = policies_[stream.model->name];
  if (policy == nullptr) {
    StatusOr<std::unique_ptr<Policy>> created = CreatePolicy(options_.policy);
    CHECK_OK(created.status());  // main checked the name
    policy = std::move(*created);
  }
  const size_t pick = policy->Pick({stream.prompt_tokens()}, candidates);
  CHECK(pick < candidates.size());
  return replicas_[candidates[pick].index].get();
}

ReplicaClient* Dispatcher::PickForRetry(const RequestStream& stream, bool again) {
  RequestGroup& group = groups_.at(stream.handle);
  ReplicaClient& moved_to = *replicas_[group.replica];
  const bool tried = stream.tried.contains(group.replica);
  if (group.replica != stream.replica && Usable(moved_to, stream) && (again || !tried))
    return &moved_to;
  ReplicaClient* replica = Pick(stream, again);
  if (replica != nullptr) group.replica = replica->options().index;
  return replica;
}

bool Dispatcher::IsLive(const RequestStream& stream) const {
  const auto found = groups_.find(stream.handle);
  return found != groups_.end() && found->second.streams[stream.choice] != nullptr;
}

void Dispatcher::End(const RequestStream& stream) {
  const auto found = groups_.find(stream.handle);
  found->second.streams[stream.choice].reset();
  --num_streams_;
  if (--found->second.num_live == 0) groups_.erase(found);
}

void Dispatcher::Cancel(uint64_t handle) {
  const auto found = groups_.find(handle);
  if (found == groups_.end()) return;
  const RequestGroup group = std::move(found->second);
  groups_.erase(found);
  num_streams_ -= group.num_live;
  for (const auto& stream : group.streams) {
    if (stream == nullptr) continue;
    ReplicaClient& replica = *replicas_[stream->replica];
    replica.Abort(stream->id, v1::FINISH_REASON_ABORT);
    UpdateBackendMetrics(replica);
  }
}

bool Dispatcher::AbortByRequestId(const std::string& request_id) {
  std::vector<std::shared_ptr<RequestStream>> matching;
  for (const auto& [handle, group] : groups_) {
    for (const auto& stream : group.streams) {
      if (stream != nullptr && stream->request.request_id() == request_id)
        matching.push_back(stream);
    }
  }
  for (const auto& stream : matching) {
    Cancel(stream->handle);
    v1::Delta last;
    last.set_last(true);
    v1::ChoiceDelta* choice = last.add_choices();
    choice->set_finish_reason(v1::FINISH_REASON_ABORT);
    v1::Usage* usage = last.mutable_usage();
    usage->set_prompt_tokens(static_cast<int32_t>(stream->prompt_tokens()));
    usage->set_completion_tokens(static_cast<int32_t>(stream->progress.output_ids.size()));
    stream->sink->OnDelta(stream->choice, std::move(last));
  }
  return !matching.empty();
}

void Dispatcher::OnStreamDelta(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  if (!IsLive(*stream)) return;
  if (delta.last() || delta.has_error()) UpdateBackendMetrics(*replicas_[stream->replica]);
  Record(delta, stream.get());
  if (stream->fetching_large) {
    stream->waiting.push_back(std::move(delta));
    return;
  }
  Deliver(stream, std::move(delta));
}

void Dispatcher::Deliver(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  if (delta.has_error()) {
    const ApiError error = FromEngineError(delta.error());
    const bool elsewhere = error.code == absl::StatusCode::kUnavailable ||
                           error.code == absl::StatusCode::kResourceExhausted;
    if (elsewhere && Retry(stream, "refused", /*same_replica_too=*/false)) return;
    if (error.code == absl::StatusCode::kResourceExhausted) metrics_->Rejection("replica_full");
    Fail(stream, error);
    return;
  }
  if (delta.large_result_id() != 0) {
    FetchLarge(stream, std::move(delta));
    return;
  }
  stream->delivered = true;
  if (delta.last()) End(*stream);
  stream->sink->OnDelta(stream->choice, std::move(delta));
}

// What follows waits, so that prompt logprobs stay in order and before the first token.
void Dispatcher::FetchLarge(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  stream->fetching_large = true;
  const uint64_t large_id = delta.large_result_id();
  auto shared = std::make_shared<v1::Delta>(std::move(delta));
  replicas_[stream->replica]->FetchLargeResult(
      large_id, [this, stream, shared,
                 id = stream->id](const std::shared_ptr<std::vector<v1::TokenLogprobs>>& entries) {
        if (!IsLive(*stream) || stream->id != id) return;
        if (entries == nullptr) {
          replicas_[stream->replica]->Abort(id, v1::FINISH_REASON_ABORT);
          OnStreamLost(stream);
          return;
        }
        stream->fetching_large = false;
        stream->prompt_logprobs += static_cast<uint32_t>(entries->size());
        shared->clear_large_result_id();
        for (v1::TokenLogprobs& entry : *entries) *shared->add_prompt_logprobs() = std::move(entry);
        Deliver(stream, std::move(*shared));
        while (IsLive(*stream) && !stream->fetching_large && !stream->waiting.empty()) {
          v1::Delta next = std::move(stream->waiting.front());
          stream->waiting.pop_front();
          Deliver(stream, std::move(next));
        }
      });
}

void Dispatcher::OnStreamLost(const std::shared_ptr<RequestStream>& stream) {
  if (!IsLive(*stream)) return;
  UpdateBackendMetrics(*replicas_[stream->replica]);
  stream->fetching_large = false;
  stream->waiting.clear();
  if (Retry(stream, "replica_lost", /*same_replica_too=*/true)) return;
  Log().warn("request lost with its replica {} {}", Kv("request_id", stream->request.request_id()),
             Kv("replica", replicas_[stream->replica]->replica_id()));
  Fail(stream,
       Unavailable("The replica that worked on this request was lost; try again.", kRetryAfterMs));
}

bool Dispatcher::CanMove(const RequestStream& stream) const {
  return std::any_of(replicas_.begin(), replicas_.end(), [&](const auto& replica) {
    return !stream.tried.contains(replica->options().index) &&
           replica->options().index != stream.replica && Usable(*replica, stream);
  });
}

bool Dispatcher::Retry(const std::shared_ptr<RequestStream>& stream, const char* reason,
                       bool same_replica_too) {
  if (stream->delivered || stream->attempts >= options_.max_attempts) return false;
  stream->tried.insert(stream->replica);
  ReplicaClient* replica = PickForRetry(*stream, /*again=*/false);
  if (replica == nullptr && same_replica_too) replica = PickForRetry(*stream, /*again=*/true);
  if (replica == nullptr) return false;
  metrics_->Retry(reason);
  Log().info("retried {} {} {}", Kv("request_id", stream->request.request_id()),
             Kv("reason", reason), Kv("replica", replica->replica_id()));
  ++stream->attempts;
  stream->id = next_id_++;
  stream->prompt_logprobs = 0;
  stream->progress = {};
  replica->Submit(stream);
  UpdateBackendMetrics(*replica);
  return true;
}

void Dispatcher::Fail(const std::shared_ptr<RequestStream>& stream, const ApiError& error) {
  End(*stream);
  Cancel(stream->handle);  // its siblings
  stream->sink->OnError(error);
}

}  // namespace flotilla
